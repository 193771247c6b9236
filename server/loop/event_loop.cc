#include "server/loop/event_loop.h"

#include <future>

#include <kj/async-unix.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

namespace psd {
namespace {

constexpr size_t kPooledBytesMax = 32u << 20;  // per loop, kept for the next messages
constexpr auto kSweepInterval = 250 * kj::MILLISECONDS;

}  // namespace

EventLoop::EventLoop(kj::AsyncIoContext& io, LoopEnvironment& environment)
    : io_(io),
      environment_(environment),
      spinner_(io.unixEventPort, environment.config->spin),
      pool_(wire::BufferPool::make(kPooledBytesMax)),
      config_(environment.config),
      tasks_(kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this))) {
  detach(sweep());
}

void EventLoop::shutDown() {
  for (auto& [key, connection] : connections_) connection->close();
  connections_.clear();
  spinner_.stop();
  tasks_ = nullptr;
  endedAt_ = now();
  running_ = false;
  openGate();  // what waits there is refused while there is a queue, not found in it at its end
  requests_.cancel(ended());
}

kj::Exception EventLoop::ended() {
  return KJ_EXCEPTION(DISCONNECTED, "the event loop that was asked has ended");
}

void EventLoop::taskFailed(kj::Exception&& exception) {
  spdlog::debug("a background task of an event loop failed: {}", exception.getDescription().cStr());
}

void EventLoop::adopt(int fd, std::string peer) {
  auto connection = environment_.connect(shared_from_this(), fd, std::move(peer));
  connections_.emplace(connection.get(), connection);
  connection->open();
  detach(connection->whenDisconnected().then(
      [this, connection] { drop(*connection, connection->endReason()); }));
}

void EventLoop::drop(PeerConnection& connection, std::string reason) {
  const auto known = connections_.find(&connection);
  if (known == connections_.end()) return;
  // Off the stack of whatever noticed; by then it may have been dropped already.
  detach(kj::evalLater([this, ending = known->second, reason = std::move(reason)] {
    auto entry = connections_.find(ending.get());
    if (entry == connections_.end()) return;
    if (!reason.empty()) {
      environment_.counters.connectionsDropped.add();
      spdlog::warn("dropped {}: {}", entry->second->peer(), reason);
    }
    entry->second->close();
    connections_.erase(entry);
    environment_.counters.connectionsOpen.subtract();
  }));
}

kj::Promise<void> EventLoop::sweep() {
  return timer().afterDelay(kSweepInterval).then([this] {
    for (auto& [key, connection] : connections_) {
      if (auto reason = connection->mustEnd()) drop(*connection, *reason);
    }
    return sweep();
  });
}

EventLoop::OfModel& EventLoop::ofModel(const std::shared_ptr<ServedModel>& model) {
  const auto found = models_.find(model);
  if (found != models_.end()) return found->second;
  std::erase_if(models_, [](const auto& entry) { return entry.first.expired(); });
  return models_.emplace(model, OfModel{model->store->makeLanes(), {}, 0}).first->second;
}

Lane& EventLoop::laneFor(const std::shared_ptr<ServedModel>& model, const Shard& shard) {
  return *ofModel(model).lanes[shard.device()];
}

const std::shared_ptr<UpdatePolicy>& EventLoop::policyOf(const std::shared_ptr<ServedModel>& model,
                                                         const Shard& shard) {
  OfModel& mine = ofModel(model);
  if (const uint64_t now = model->generation(); mine.generation != now) {
    mine.policies = model->policies();
    mine.generation = now;
  }
  return mine.policies[shard.range().group];
}

void EventLoop::setConfig(std::shared_ptr<const DaemonConfig> config) {
  config_ = std::move(config);
  for (auto& [model, mine] : models_) {  // policies that are retired are not to be kept here
    mine.policies.clear();
    mine.generation = 0;
  }
}

void EventLoop::closeGate() {
  if (gateOpener_ != nullptr) return;
  auto opened = kj::newPromiseAndFulfiller<void>();
  gateOpener_ = kj::mv(opened.fulfiller);
  gateOpened_ = opened.promise.fork();
}

void EventLoop::openGate() {
  KJ_IF_MAYBE (opener, gateOpener_) {
    (*opener)->fulfill();
  }
  gateOpener_ = nullptr;
}

kj::Maybe<kj::Promise<void>> EventLoop::gate() {
  if (gateOpener_ == nullptr) return nullptr;
  return gateOpened_.addBranch();
}

bool EventLoop::quiet() const {
  if (underWay_.open != 0) return false;
  for (const auto& [key, connection] : connections_) {
    if (connection->queuedBytes() != 0) return false;
  }
  return true;
}

bool EventLoop::hasTrainers() const {
  for (const auto& [key, connection] : connections_) {
    if (connection->trainers() != 0) return true;
  }
  return false;
}

bool EventLoop::owesOutcome() const {
  for (const auto& [key, connection] : connections_) {
    if (connection->owesOutcome()) return true;
  }
  return false;
}

EventLoopThread::EventLoopThread(LoopEnvironment& environment, unsigned index) : posted_(*this) {
  auto finished = kj::newPromiseAndCrossThreadFulfiller<void>();
  finished_ = kj::mv(finished.promise);
  finish_ = kj::mv(finished.fulfiller);
  std::promise<void> running;
  thread_ = std::thread([this, &environment, index, &running] {
    pthread_setname_np(pthread_self(), ("psd-loop-" + std::to_string(index)).c_str());
    {
      auto io = kj::setupAsyncIo();
      auto exit = kj::newPromiseAndFulfiller<void>();
      auto loop = std::make_shared<EventLoop>(io, environment);
      loop_ = loop.get();
      executor_ = kj::getCurrentThreadExecutor().addRef();
      exit_ = kj::mv(exit.fulfiller);
      running.set_value();
      exit.promise.wait(io.waitScope);
      exit_ = nullptr;
      io.waitScope.poll();  // what is in the queue still
    }
    finish_->fulfill();
  });
  running.get_future().wait();
}

void EventLoopThread::taskFailed(kj::Exception&& exception) {
  spdlog::error("an event loop did not take over its work: {}", exception.getDescription().cStr());
}

EventLoopThread::~EventLoopThread() {
  if (thread_.joinable()) thread_.join();
}

kj::Promise<void> EventLoopThread::shutDown() {
  return executor_->executeAsync([this] { loop_->shutDown(); });
}

kj::Promise<void> EventLoopThread::turn() {
  return executor_->executeAsync([] { return kj::evalLast([] {}); });
}

kj::Promise<void> EventLoopThread::stop() {
  return executor_->executeAsync([this] { exit_->fulfill(); }).then([this] { return kj::mv(finished_); });
}

}  // namespace psd

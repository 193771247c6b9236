#include "server/loop/event_loop.h"

#include <future>

#include <kj/async-unix.h>
#include <kj/debug.h>
#include <pthread.h>
#include <spdlog/spdlog.h>

namespace psd {
namespace {

constexpr size_t kPooledBytesMax = 32u << 20;  // per loop, kept for reuse

}  // namespace

EventLoop::EventLoop(kj::AsyncIoContext& io, LoopEnvironment& environment)
    : io_(io),
      environment_(environment),
      spinner_(io.unixEventPort, environment.config->spin),
      pool_(wire::BufferPool::make(kPooledBytesMax)),
      config_(environment.config),
      connections_(timer(), environment.counters),
      tasks_(kj::heap<kj::TaskSet>(static_cast<kj::TaskSet::ErrorHandler&>(*this))) {}

void EventLoop::shutDown() {
  connections_.closeAll();
  spinner_.stop();
  tasks_ = nullptr;
  endedAt_ = now();
  running_ = false;
  gate_.open();  // gradients that wait there are refused while the loop's queue still exists
  requests_.cancel(ended());
}

kj::Exception EventLoop::ended() { return KJ_EXCEPTION(DISCONNECTED, "the event loop has ended"); }

void EventLoop::taskFailed(kj::Exception&& exception) {
  spdlog::debug("a background task of an event loop failed: {}", exception.getDescription().cStr());
}

void EventLoop::setConfig(std::shared_ptr<const DaemonConfig> config) {
  config_ = std::move(config);
  models_.forgetPolicies();
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
      io.waitScope.poll();  // runs what is left in the queue
    }
    finish_->fulfill();
  });
  running.get_future().wait();
}

void EventLoopThread::taskFailed(kj::Exception&& exception) {
  spdlog::error("work posted to an event loop failed: {}", exception.getDescription().cStr());
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

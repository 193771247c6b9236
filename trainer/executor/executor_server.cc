#include "trainer/executor/executor_server.h"

#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/text/quantity.h"
#include "trainer/executor/executor_service.h"

namespace psd {
namespace {

constexpr size_t kPooledBytesMax = 64u << 20;
constexpr uint64_t kMessagesInFlight = 8;  // of the largest size
constexpr uint64_t kReadsOfAMessage = 4;   // of each of its words, at most
constexpr uint64_t kUnfinishedCallsMax = 4096;
constexpr size_t kUnreadAnswersMax = 64;
constexpr kj::Duration kSweepEvery = 100 * kj::MILLISECONDS;
constexpr kj::Duration kAcceptPause = 100 * kj::MILLISECONDS;

}  // namespace

ExecutorPeer::ExecutorPeer(kj::AsyncIoContext& io, AcceptedSocket accepted, Executor& executor,
                           std::shared_ptr<wire::BufferPool> pool, std::shared_ptr<ByteBudget> budget)
    : config_(executor.config()),
      where_(std::move(accepted.peer)),
      cameAt_(io.provider->getTimer().now()),
      heardAt_(cameAt_) {
  endWhenVanished(accepted.fd.get(), config_.silence);
  wire::Socket socket = wire::wrapSocket(*io.lowLevelProvider, accepted.fd.release());
  socket_ = kj::mv(socket.stream);
  stream_ = kj::heap<wire::MessageStream>(*socket_, std::move(pool), io.provider->getTimer(),
                                          options(std::move(budget)));
  capnp::ReaderOptions reading;
  reading.traversalLimitInWords = kReadsOfAMessage * config_.messageBytes / sizeof(capnp::word);
  network_ = kj::heap<capnp::TwoPartyVatNetwork>(*stream_, capnp::rpc::twoparty::Side::SERVER, reading);
  rpc_ = capnp::makeRpcServer(*network_,
                              kj::heap<ExecutorService>(executor, where_, [this] { greeted_ = true; }));
}

wire::MessageStreamOptions ExecutorPeer::options(std::shared_ptr<ByteBudget> budget) {
  wire::MessageStreamOptions options;
  options.messageBytesMax = config_.messageBytes;
  options.readTimeout = config_.silence.count() * kj::MILLISECONDS;
  options.onRefused = [this](kj::StringPtr reason) { refused_ = reason.cStr(); };
  // Who does not read its answers asks for no more.
  options.mayRead = [this] {
    return network_->getCurrentQueueCount() + stream_->heldMessages() < kUnreadAnswersMax &&
           network_->getCurrentQueueSize() < config_.messageBytes;
  };
  options.unfinishedCallsMax = kUnfinishedCallsMax;
  options.budget = std::move(budget);
  return options;
}

std::optional<std::string> ExecutorPeer::mustEnd(kj::TimePoint now) {
  const kj::Duration silence = config_.silence.count() * kj::MILLISECONDS;
  if (!refused_.empty()) return refused_;
  if (const uint64_t received = stream_->receivedBytes(); received != receivedBytes_) {
    receivedBytes_ = received;
    heardAt_ = now;
  }
  if (!greeted_ && now - cameAt_ >= silence) return "it has not said hello for silence_ms";
  if (now - heardAt_ >= silence) {
    return fmt::format("nothing came from it for silence_ms ({})", durationText(config_.silence));
  }
  if (kj::max(network_->getOutgoingMessageWaitTime(), stream_->writeWaitTime()) >= silence) {
    return "it has not read its answers for silence_ms";
  }
  return {};
}

ExecutorServer::ExecutorServer(kj::AsyncIoContext& io, Executor& executor,
                               std::vector<ListenSockets> listening)
    : io_(io),
      executor_(executor),
      listening_(std::move(listening)),
      pool_(wire::BufferPool::make(kPooledBytesMax)),
      budget_(ByteBudget::make(kMessagesInFlight * executor.config().messageBytes)),
      tasks_(*this) {
  for (const ListenSockets& sockets : listening_) {
    for (const OwnFd& socket : sockets.sockets()) {
      auto observer = kj::heap<kj::UnixEventPort::FdObserver>(io_.unixEventPort, socket.get(),
                                                              kj::UnixEventPort::FdObserver::OBSERVE_READ);
      auto& ref = *observer;
      tasks_.add(accept(ref, socket.get()).attach(kj::mv(observer)));
    }
  }
  tasks_.add(sweep());
}

kj::Promise<void> ExecutorServer::accept(kj::UnixEventPort::FdObserver& observer, int listening) {
  if (acceptWaiting(listening)) {
    return observer.whenBecomesReadable().then(
        [this, &observer, listening] { return accept(observer, listening); });
  }
  return io_.provider->getTimer().afterDelay(kAcceptPause).then([this, &observer, listening] {
    return accept(observer, listening);
  });
}

bool ExecutorServer::acceptWaiting(int listening) {
  for (;;) {
    auto accepted = acceptFrom(listening);
    if (!accepted.ok()) {
      spdlog::warn("cannot accept a connection: {}; trying again", accepted.message());
      return false;
    }
    if (accepted->fd.get() < 0) return true;
    if (peers_.size() < executor_.config().connections) {
      serve(*std::move(accepted));
    } else {
      spdlog::warn("refused {}: `connections` ({}) are open", accepted->peer, peers_.size());
    }
  }
}

void ExecutorServer::serve(AcceptedSocket accepted) {
  const uint64_t number = numbers_++;
  auto peer = std::make_unique<ExecutorPeer>(io_, std::move(accepted), executor_, pool_, budget_);
  tasks_.add(peer->whenDisconnected().then([this, number] {
    const auto gone = peers_.find(number);
    if (gone == peers_.end()) return;
    spdlog::info("{}: gone", gone->second->where());
    peers_.erase(gone);
  }));
  peers_.emplace(number, std::move(peer));
}

kj::Promise<void> ExecutorServer::sweep() {
  return io_.provider->getTimer().afterDelay(kSweepEvery).then([this] {
    const kj::TimePoint now = io_.provider->getTimer().now();
    std::erase_if(peers_, [&](const auto& each) {
      const auto reason = each.second->mustEnd(now);
      if (reason) spdlog::warn("{}: dropped: {}", each.second->where(), *reason);
      return reason.has_value();
    });
    executor_.dropIdle();
    return sweep();
  });
}

void ExecutorServer::taskFailed(kj::Exception&& exception) {
  spdlog::warn("a connection ended: {}", exception.getDescription().cStr());
}

}  // namespace psd

#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "server/engine/etcd.h"
#include "test/support/catch.h"
#include "test/support/etcd_process.h"
#include "test/support/memory_engine.h"

namespace psd::testing {

/// An event loop whose waits end after a minute. Owned by one thread.
struct EngineLoop {
  kj::AsyncIoContext io = kj::setupAsyncIo();

  kj::Timer& timer() { return io.provider->getTimer(); }
  kj::Network& network() { return io.provider->getNetwork(); }
  template <class T>
  T wait(kj::Promise<T> promise) {
    return timer().timeoutAfter(60 * kj::SECONDS, kj::mv(promise)).wait(io.waitScope);
  }
  /// Whether it is resolved after running the loop for `ms` milliseconds.
  template <class T>
  bool resolvedWithin(uint64_t milliseconds, kj::Promise<T>& promise) {
    timer().afterDelay(milliseconds * kj::MILLISECONDS).wait(io.waitScope);
    return promise.poll(io.waitScope);
  }
  /// Reads until the condition holds for the current value, for up to a minute.
  template <class Condition>
  Stored readUntil(Engine& engine, const std::string& key, Condition condition) {
    const kj::TimePoint end = timer().now() + 60 * kj::SECONDS;
    for (;;) {
      const auto stored = wait(engine.read(key));
      if (stored.ok() && condition(*stored)) return *stored;
      INFO(why(stored));
      REQUIRE(timer().now() < end);
      wait(timer().afterDelay(5 * kj::MILLISECONDS));
    }
  }
  Stored readUntilAnswered(Engine& engine, const std::string& key = "/test/ready") {
    return readUntil(engine, key, [](const Stored&) { return true; });
  }

  std::unique_ptr<Etcd> etcd(EtcdOptions options) {
    auto opened = Etcd::open(network(), timer(), options);
    PSD_REQUIRE_OK(opened);
    return *std::move(opened);
  }
  /// With long timeouts, so that a busy machine does not look like an unavailable etcd.
  std::unique_ptr<Etcd> etcd(const std::vector<EtcdMember>& members) { return etcd(patient(members)); }
  static EtcdOptions patient(const std::vector<EtcdMember>& members) {
    return {.members = members, .answerMs = 30'000, .loginMs = 30'000};
  }
  /// With short retries, for members that do not answer.
  std::unique_ptr<Etcd> fastRetryEtcd(const std::vector<EtcdMember>& members) {
    return etcd(EtcdOptions{.members = members, .pollMs = 200});
  }
};

/// An etcd that answers, or the end of this program, which ctest then shows as skipped.
inline std::unique_ptr<EtcdProcess> etcdOrSkip(EngineLoop& loop, size_t members = 1) {
  if (!EtcdProcess::isInstalled()) skipTest("there is no etcd 3.4 or later (Debian's etcd-server)");
  for (int attempt = 0; attempt < 5; attempt++) {
    auto process = std::make_unique<EtcdProcess>(members);
    const auto engine = loop.etcd(process->members());
    const kj::TimePoint end = loop.timer().now() + 60 * kj::SECONDS;
    while (process->isRunning() && loop.timer().now() < end) {
      if (loop.wait(engine->read("/test/ready")).ok()) return process;
      loop.wait(loop.timer().afterDelay(5 * kj::MILLISECONDS));
    }
    WARN("etcd did not start: " << process->log());
  }
  FAIL("etcd does not start");
  return nullptr;
}

/// A proxy of an etcd member that forwards bytes as long as the test allows. Owned by one event loop.
class EngineProxy final : private kj::TaskSet::ErrorHandler {
 public:
  EngineProxy(EngineLoop& loop, const EtcdMember& upstream)
      : loop_(loop), upstream_(upstream), connections_(newConnections()), accepting_(*this) {
    auto address = loop.wait(loop.network().parseAddress("127.0.0.1", 0));
    receiver_ = address->listen();
    accepting_.add(accept());
  }

  EtcdMember member() { return {"127.0.0.1", static_cast<uint16_t>(receiver_->getPort()), false}; }
  /// From now on the member's output is discarded, though connections stay.
  void swallowAnswers(bool swallow) { swallowing_ = swallow; }
  /// The bytes sent to the member.
  uint64_t asked() const { return asked_; }
  void cut() { connections_ = newConnections(); }

 private:
  kj::Own<kj::TaskSet> newConnections() { return kj::heap<kj::TaskSet>(static_cast<ErrorHandler&>(*this)); }
  kj::Promise<void> accept() {
    return receiver_->accept().then([this](kj::Own<kj::AsyncIoStream> client) {
      connections_->add(serve(kj::mv(client)));
      return accept();
    });
  }
  kj::Promise<void> serve(kj::Own<kj::AsyncIoStream> client) {
    return loop_.network()
        .parseAddress(upstream_.host.c_str(), upstream_.port)
        .then([](kj::Own<kj::NetworkAddress> address) { return address->connect().attach(kj::mv(address)); })
        .then([this, client = kj::mv(client)](kj::Own<kj::AsyncIoStream> member) mutable {
          auto up = pump(*client, *member, true), down = pump(*member, *client, false);
          return up.exclusiveJoin(kj::mv(down)).attach(kj::mv(client), kj::mv(member));
        });
  }
  kj::Promise<void> pump(kj::AsyncIoStream& from, kj::AsyncIoStream& to, bool upwards) {
    auto buffer = kj::heapArray<kj::byte>(4096);
    auto* const bytes = buffer.begin();
    return from.tryRead(bytes, 1, buffer.size())
        .then(
            [this, &from, &to, upwards, buffer = kj::mv(buffer)](size_t count) mutable -> kj::Promise<void> {
              if (count == 0) return kj::READY_NOW;
              if (upwards) asked_ += count;
              if (!upwards && swallowing_) return pump(from, to, upwards);
              auto* const read = buffer.begin();
              return to.write(read, count).attach(kj::mv(buffer)).then([this, &from, &to, upwards] {
                return pump(from, to, upwards);
              });
            });
  }
  void taskFailed(kj::Exception&&) override {}  // a connection that broke

  EngineLoop& loop_;
  const EtcdMember upstream_;
  bool swallowing_ = false;
  uint64_t asked_ = 0;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Own<kj::TaskSet> connections_;
  kj::TaskSet accepting_;
};

}  // namespace psd::testing

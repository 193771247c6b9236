#include "trainer/client/liveness_watch.h"

#include <algorithm>

#include "common/wire/convert.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

constexpr uint64_t kHeartbeatsPerTimeout = 4;
constexpr std::chrono::milliseconds kTimeoutMin{40};  // minimum, whatever lease a daemon grants

}  // namespace

LivenessWatch::LivenessWatch(DaemonConnection& connection, std::chrono::milliseconds silence,
                             std::function<void(const Error&)> fail)
    : connection_(connection),
      fail_(std::move(fail)),
      heartbeats_(*this),
      beats_(beat(std::max(silence, kTimeoutMin).count() * kj::MILLISECONDS / kHeartbeatsPerTimeout)
                 .eagerlyEvaluate([](kj::Exception&&) {})) {}

kj::Promise<void> LivenessWatch::beat(kj::Duration interval) {
  return connection_.timer().afterDelay(interval).then([this, interval]() -> kj::Promise<void> {
    // The answer to a heartbeat may queue behind slices, in the network or in the daemon, so any received
    // bytes count. Counted in heartbeats, because time in which this process was suspended says nothing about
    // the daemon.
    const uint64_t received = connection_.stream().receivedBytes();
    idleHeartbeats_ = received == lastReceivedBytes_ ? idleHeartbeats_ + 1 : 0;
    lastReceivedBytes_ = received;
    if (idleHeartbeats_ == kHeartbeatsPerTimeout) {
      fail_({ErrorCode::unavailable, "the daemon at " + connection_.server() + " does not answer"});
      return kj::READY_NOW;
    }
    sendHeartbeat();
    return beat(interval);
  });
}

void LivenessWatch::sendHeartbeat() {
  if (!connection_.canPush()) {
    heartbeats_.add(connection_.reading().pingRequest(capnp::MessageSize{4, 0}).send().ignoreResult());
    return;
  }
  heartbeats_.add(connection_.trainer().keepAliveRequest().send().then(
      [this](capnp::Response<schema::Trainer::KeepAliveResults> answer) {
        const Status status = wire::readStatus(answer.getStatus());
        if (!status.ok()) fail_(sanitized(status.error()));
      }));
}

}  // namespace psd

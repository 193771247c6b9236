#include "trainer/client/silence_watch.h"

#include <algorithm>

#include "common/wire/convert.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

constexpr uint64_t kBeatsPerSilence = 4;
constexpr std::chrono::milliseconds kSilenceMin{40};  // minimum, whatever lease a daemon grants

}  // namespace

SilenceWatch::SilenceWatch(DaemonConnection& connection, std::chrono::milliseconds silence,
                           std::function<void(const Error&)> fail)
    : connection_(connection),
      fail_(std::move(fail)),
      asked_(*this),
      beats_(beat(std::max(silence, kSilenceMin).count() * kj::MILLISECONDS / kBeatsPerSilence)
                 .eagerlyEvaluate([](kj::Exception&&) {})) {}

kj::Promise<void> SilenceWatch::beat(kj::Duration interval) {
  return connection_.timer().afterDelay(interval).then([this, interval]() -> kj::Promise<void> {
    // The answer to a heartbeat may queue behind slices, in the network or in the daemon, so any received
    // bytes count. Counted in heartbeats, because time in which this process was suspended says nothing about
    // the daemon.
    const uint64_t received = connection_.stream().receivedBytes();
    quietBeats_ = received == heardBytes_ ? quietBeats_ + 1 : 0;
    heardBytes_ = received;
    if (quietBeats_ == kBeatsPerSilence) {
      fail_({ErrorCode::unavailable, "the daemon at " + connection_.server() + " does not answer"});
      return kj::READY_NOW;
    }
    askForLife();
    return beat(interval);
  });
}

void SilenceWatch::askForLife() {
  if (!connection_.canPush()) {
    asked_.add(connection_.reading().pingRequest(capnp::MessageSize{4, 0}).send().ignoreResult());
    return;
  }
  asked_.add(connection_.trainer().keepAliveRequest().send().then(
      [this](capnp::Response<schema::Trainer::KeepAliveResults> answer) {
        const Status status = wire::readStatus(answer.getStatus());
        if (!status.ok()) fail_(sanitized(status.error()));
      }));
}

}  // namespace psd

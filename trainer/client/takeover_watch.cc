#include "trainer/client/takeover_watch.h"

#include <chrono>
#include <system_error>
#include <utility>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <pthread.h>

#include "common/os/random_id.h"
#include "common/os/socket.h"
#include "common/tls/connect.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"
#include "trainer/client/attempts.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kAttempt{1'000};  // each, for TLS and for logging in
/// A connection that breaks sooner counts as a failed attempt.
constexpr milliseconds kStood{500};
/// Pause after a rejected login, each of which costs the daemon a log line.
constexpr milliseconds kRefused{60'000};

}  // namespace

Result<std::unique_ptr<TakeoverWatch>> TakeoverWatch::begin(const ClientOptions& options,
                                                            const std::string& server,
                                                            const ServingDaemon& from, Tell tell) {
  try {
    return std::unique_ptr<TakeoverWatch>(new TakeoverWatch(options, server, from, std::move(tell)));
  } catch (const std::system_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread to watch a standby: ") + error.what()};
  }
}

TakeoverWatch::TakeoverWatch(const ClientOptions& options, std::string server, const ServingDaemon& from,
                             Tell tell)
    : server_(std::move(server)),
      token_(options.token),
      tls_(options.tls),
      from_(from),
      tell_(std::move(tell)),
      thread_([this] { run(); }) {}

TakeoverWatch::~TakeoverWatch() {
  stop_.stop();
  thread_.join();
}

void TakeoverWatch::run() {
  pthread_setname_np(pthread_self(), "psd-watch");
  PatientAttempts attempts(drawId());
  bool told = false;
  for (;;) {
    const Seen seen = waitOnce(attempts.timeout());
    if (seen == Seen::takenOver) return tell_.takenOver();
    milliseconds pause = seen == Seen::broke ? attempts.broke() : attempts.failed();
    if (seen == Seen::refused) {
      if (!std::exchange(told, true)) tell_.refused(refusal_);
      pause = kRefused;
    }
    if (!stop_.pause(pause)) return;
  }
}

TakeoverWatch::Seen TakeoverWatch::waitOnce(milliseconds timeout) {
  Clock::time_point letIn = Clock::time_point::max();
  const auto address = parseAddress(server_);
  if (!address.ok()) return Seen::nothing;
  auto fd = connectTo(*address, timeout);
  if (!fd.ok()) return Seen::nothing;
  try {
    auto io = kj::setupAsyncIo();
    wire::StopSignal::InLoop stop(stop_, io.provider->getTimer());
    const auto soon = [&](auto promise) { return stop.within(kAttempt, kj::mv(promise)); };
    auto socket = soon(streamOver(io, *std::move(fd), *address, tls_)).wait(io.waitScope);
    if (!socket.ok()) return Seen::nothing;
    capnp::TwoPartyClient client(*socket->stream);
    auto login = client.bootstrap().castAs<schema::Login>().loginRequest();
    wire::writeLogin("psd-trainer " PSD_VERSION, token_, login);
    auto in = soon(kj::Promise<capnp::Response<schema::LoginResult>>(login.send().dropPipeline()))
                  .wait(io.waitScope);
    if (!in.hasReading()) {
      const Status refused = sanitized(wire::readStatus(in.getStatus()));
      if (refused.ok() || isRetryable(refused.error().code)) return Seen::nothing;
      refusal_ = refused.message();
      return Seen::refused;
    }
    auto request = in.getReading().takeoverRequest();
    request.setKnown(from_.epoch);
    request.setPrimary(from_.number);
    using Answer = capnp::Response<schema::Reading::TakeoverResults>;
    auto gone = client.onDisconnect().then(
        []() -> kj::Promise<Answer> { return KJ_EXCEPTION(DISCONNECTED, "the standby is gone"); });
    kj::Promise<Answer> answer = request.send().dropPipeline();
    letIn = Clock::now();
    const uint64_t epoch = stop.orStopped(answer.exclusiveJoin(kj::mv(gone))).wait(io.waitScope).getEpoch();
    return epoch > from_.epoch ? Seen::takenOver : Seen::nothing;
  } catch (const kj::Exception&) {
    return Clock::now() - kStood >= letIn ? Seen::broke : Seen::nothing;
  }
}

}  // namespace psd

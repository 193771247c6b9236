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
#include "trainer/client/handshake.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kAttempt{1'000};  // each, for TLS and for logging in
/// A connection that breaks sooner counts as a failed attempt.
constexpr milliseconds kStableAfter{500};
/// Pause after a rejected login, each of which costs the daemon a log line.
constexpr milliseconds kRejectedPause{60'000};

}  // namespace

Result<std::unique_ptr<TakeoverWatch>> TakeoverWatch::begin(const ClientOptions& options,
                                                            const std::string& server,
                                                            const ServingDaemon& from, Callbacks callbacks) {
  try {
    return std::unique_ptr<TakeoverWatch>(new TakeoverWatch(options, server, from, std::move(callbacks)));
  } catch (const std::system_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread to watch a standby: ") + error.what()};
  }
}

TakeoverWatch::TakeoverWatch(const ClientOptions& options, std::string server, const ServingDaemon& from,
                             Callbacks callbacks)
    : server_(std::move(server)),
      program_(programOf(options)),
      token_(options.token),
      tls_(options.tls),
      from_(from),
      callbacks_(std::move(callbacks)),
      thread_([this] { run(); }) {}

TakeoverWatch::~TakeoverWatch() {
  stop_.stop();
  thread_.join();
}

void TakeoverWatch::run() {
  pthread_setname_np(pthread_self(), "psd-watch");
  PatientAttempts attempts(drawId());
  bool reported = false;
  for (;;) {
    const Outcome outcome = waitOnce(attempts.timeout());
    if (outcome == Outcome::takenOver) return callbacks_.takenOver();
    milliseconds pause = outcome == Outcome::broke ? attempts.broke() : attempts.failed();
    if (outcome == Outcome::refused) {
      if (!std::exchange(reported, true)) callbacks_.refused(refusal_);
      pause = kRejectedPause;
    }
    if (!stop_.pause(pause)) return;
  }
}

TakeoverWatch::Outcome TakeoverWatch::waitOnce(milliseconds timeout) {
  Clock::time_point admittedAt = Clock::time_point::max();
  const auto address = parseAddress(server_);
  if (!address.ok()) return Outcome::nothing;
  auto fd = connectTo(*address, timeout);
  if (!fd.ok()) return Outcome::nothing;
  try {
    auto io = kj::setupAsyncIo();
    wire::StopSignal::InLoop stop(stop_, io.provider->getTimer());
    const auto soon = [&](auto promise) { return stop.within(kAttempt, kj::mv(promise)); };
    auto socket = soon(streamOver(io, *std::move(fd), *address, tls_)).wait(io.waitScope);
    if (!socket.ok()) return Outcome::nothing;
    capnp::TwoPartyClient client(*socket->stream);
    auto login = client.bootstrap().castAs<schema::Login>().loginRequest();
    wire::writeLogin(program_, token_, login);
    auto in = soon(kj::Promise<capnp::Response<schema::LoginResult>>(login.send().dropPipeline()))
                  .wait(io.waitScope);
    if (!in.hasReading()) {
      const Status refused = sanitized(wire::readStatus(in.getStatus()));
      if (refused.ok() || isRetryable(refused.error().code)) return Outcome::nothing;
      refusal_ = refused.message();
      return Outcome::refused;
    }
    auto request = in.getReading().takeoverRequest();
    request.setKnown(from_.term);
    request.setPrimary(from_.number);
    using Answer = capnp::Response<schema::Reading::TakeoverResults>;
    auto gone = client.onDisconnect().then(
        []() -> kj::Promise<Answer> { return KJ_EXCEPTION(DISCONNECTED, "the standby is gone"); });
    kj::Promise<Answer> answer = request.send().dropPipeline();
    admittedAt = Clock::now();
    const uint64_t term = stop.orStopped(answer.exclusiveJoin(kj::mv(gone))).wait(io.waitScope).getTerm();
    return term > from_.term ? Outcome::takenOver : Outcome::nothing;
  } catch (const kj::Exception&) {
    return Clock::now() - kStableAfter >= admittedAt ? Outcome::broke : Outcome::nothing;
  }
}

}  // namespace psd

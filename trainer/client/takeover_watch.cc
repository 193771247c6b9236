#include "trainer/client/takeover_watch.h"

#include <chrono>
#include <system_error>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <pthread.h>

#include "common/os/random_id.h"
#include "common/os/socket.h"
#include "common/tls/connect.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"
#include "trainer/client/attempts.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kAttempt{1'000};  // each for TLS, and for logging in
/// A daemon that lets the watch in and goes sooner, again and again, is tried as one that is not there.
constexpr milliseconds kStood{500};

}  // namespace

Result<std::unique_ptr<TakeoverWatch>> TakeoverWatch::begin(const ClientOptions& options,
                                                            const std::string& server, uint64_t known,
                                                            std::function<void()> tell) {
  try {
    return std::unique_ptr<TakeoverWatch>(new TakeoverWatch(options, server, known, std::move(tell)));
  } catch (const std::system_error& error) {
    return Error{ErrorCode::overloaded, std::string("no thread to watch a standby: ") + error.what()};
  }
}

TakeoverWatch::TakeoverWatch(const ClientOptions& options, std::string server, uint64_t known,
                             std::function<void()> tell)
    : server_(std::move(server)),
      token_(options.token),
      tls_(options.tls),
      known_(known),
      tell_(std::move(tell)),
      thread_([this] { run(); }) {}

TakeoverWatch::~TakeoverWatch() {
  stop_.stop();
  thread_.join();
}

void TakeoverWatch::run() {
  pthread_setname_np(pthread_self(), "psd-watch");
  PatientAttempts attempts(drawId());
  for (;;) {
    const Seen seen = waitOnce(attempts.timeout());
    if (seen == Seen::takenOver) return tell_();
    if (!stop_.pause(seen == Seen::broke ? attempts.broke() : attempts.failed())) return;
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
    if (!in.hasReading()) return Seen::nothing;
    auto request = in.getReading().takeoverRequest();
    request.setKnown(known_);
    using Answer = capnp::Response<schema::Reading::TakeoverResults>;
    auto gone = client.onDisconnect().then(
        []() -> kj::Promise<Answer> { return KJ_EXCEPTION(DISCONNECTED, "the standby is gone"); });
    kj::Promise<Answer> answer = request.send().dropPipeline();
    letIn = Clock::now();
    const uint64_t epoch = stop.orStopped(answer.exclusiveJoin(kj::mv(gone))).wait(io.waitScope).getEpoch();
    return epoch > known_ ? Seen::takenOver : Seen::nothing;
  } catch (const kj::Exception&) {
    return Clock::now() - kStood >= letIn ? Seen::broke : Seen::nothing;
  }
}

}  // namespace psd

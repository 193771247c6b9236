#include "trainer/client/takeover_watch.h"

#include <chrono>
#include <system_error>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <pthread.h>

#include "common/os/socket.h"
#include "common/tls/connect.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAttempt{1'000};  // for connecting and logging in
constexpr milliseconds kPause{500};      // between attempts

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
  {
    const std::lock_guard hold(mutex_);
    stopped_ = true;
    KJ_IF_MAYBE (stop, stop_) (*stop)->fulfill();
    stop_ = nullptr;
  }
  told_.notify_one();
  thread_.join();
}

bool TakeoverWatch::stopped() {
  const std::lock_guard hold(mutex_);
  return stopped_;
}

void TakeoverWatch::run() {
  pthread_setname_np(pthread_self(), "psd-watch");
  while (!stopped()) {
    if (waitOnce()) return tell_();
    std::unique_lock hold(mutex_);
    told_.wait_for(hold, kPause, [this] { return stopped_; });
  }
}

bool TakeoverWatch::waitOnce() {
  const auto address = parseAddress(server_);
  if (!address.ok()) return false;
  auto fd = connectTo(*address, kAttempt);
  if (!fd.ok()) return false;
  try {
    auto io = kj::setupAsyncIo();
    auto& timer = io.provider->getTimer();
    auto stop = kj::newPromiseAndCrossThreadFulfiller<void>();
    {
      const std::lock_guard hold(mutex_);
      if (stopped_) return false;
      stop_ = kj::mv(stop.fulfiller);
    }
    KJ_DEFER({
      const std::lock_guard hold(mutex_);
      stop_ = nullptr;
    });
    auto stopped = stop.promise.fork();
    const auto orStopped = [&](auto promise) {
      using Promise = decltype(promise);
      return promise.exclusiveJoin(
          stopped.addBranch().then([]() -> Promise { return KJ_EXCEPTION(DISCONNECTED, "stopped"); }));
    };
    const auto soon = [&](auto promise) {
      return orStopped(timer.timeoutAfter(kAttempt.count() * kj::MILLISECONDS, kj::mv(promise)));
    };
    auto socket = soon(streamOver(io, *std::move(fd), *address, tls_)).wait(io.waitScope);
    if (!socket.ok()) return false;
    capnp::TwoPartyClient client(*socket->stream);
    auto login = client.bootstrap().castAs<schema::Login>().loginRequest();
    wire::writeLogin("psd-trainer " PSD_VERSION, token_, login);
    auto in = soon(kj::Promise<capnp::Response<schema::LoginResult>>(login.send().dropPipeline()))
                  .wait(io.waitScope);
    if (!in.hasReading()) return false;
    auto request = in.getReading().takeoverRequest();
    request.setKnown(known_);
    using Answer = capnp::Response<schema::Reading::TakeoverResults>;
    auto gone = client.onDisconnect().then(
        []() -> kj::Promise<Answer> { return KJ_EXCEPTION(DISCONNECTED, "the standby is gone"); });
    kj::Promise<Answer> answer = request.send().dropPipeline();
    return orStopped(answer.exclusiveJoin(kj::mv(gone))).wait(io.waitScope).getEpoch() > known_;
  } catch (const kj::Exception&) {
    return false;
  }
}

}  // namespace psd

#include "server/client/primary_client.h"

#include <algorithm>
#include <new>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <pthread.h>

#include "common/os/socket.h"
#include "common/text/text.h"
#include "common/tls/connect.h"
#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "schema/psd.capnp.h"
#include "server/checkpoint/log_format.h"
#include "server/metrics/steady_clock.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPauseMin{20}, kPauseMax{1'000};  // between two attempts, growing
constexpr milliseconds kRefusedMax{5'000};               // if a process answers but refuses

/// Receives the primary's image and log. Belongs to the connection's thread.
class Sink final : public schema::ReplicaSink::Server {
 public:
  Sink(const PrimaryDial& dial, kj::Own<kj::PromiseFulfiller<void>> released)
      : dial_(dial), released_(kj::mv(released)) {}
  ~Sink() noexcept(false) { released_->fulfill(); }

 protected:
  kj::Promise<void> image(ImageContext context) override {
    heard();
    const auto params = context.getParams();
    const auto bytes = params.getBytes();
    ImagePart part{
        std::string(wire::textIn(params.getPath())), std::string(wire::textIn(params.getRenamedTo())), {}};
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes.begin());
    Status kept;
    try {
      part.bytes.assign(begin, begin + bytes.size());
      kept = dial_.copy->image(part);
    } catch (const std::bad_alloc&) {
      kept = dial_.copy->outOfMemory();
    }
    context.releaseParams();
    wire::writeStatus(kept, context.getResults().initStatus());
    return kj::READY_NOW;
  }

  kj::Promise<void> imageDone(ImageDoneContext context) override {
    heard();
    std::string path(wire::textIn(context.getParams().getPath()));
    context.releaseParams();
    return dial_.copy->imageDone(std::move(path)).then([this, context](const Status& status) mutable {
      if (status.ok()) dial_.events.caughtUp();
      wire::writeStatus(status, context.getResults().initStatus());
    });
  }

  kj::Promise<void> records(RecordsContext context) override {
    heard();
    const auto bytes = context.getParams().getBytes();
    auto taken = dial_.copy->records({reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()});
    context.releaseParams();
    return taken.then([context](const Result<FollowerProgress>& progress) mutable {
      answer(progress, context.getResults());
    });
  }

  kj::Promise<void> heartbeat(HeartbeatContext context) override {
    heard();
    answer(dial_.copy->progress(), context.getResults());
    return kj::READY_NOW;
  }

  kj::Promise<void> clusterDocumentChanged(ClusterDocumentChangedContext context) override {
    heard();
    dial_.events.documentChanged();
    wire::writeStatus({}, context.getResults().initStatus());
    return kj::READY_NOW;
  }

  kj::Promise<void> runEnded(RunEndedContext context) override {
    heard();
    dial_.events.runEnded(printable(wire::textIn(context.getParams().getReason()), 300));
    wire::writeStatus({}, context.getResults().initStatus());
    return kj::READY_NOW;
  }

 private:
  void heard() { *dial_.heardMs = steadyMs(); }
  static void answer(const Result<FollowerProgress>& progress, schema::FollowerAnswer::Builder out) {
    if (!progress.ok()) return wire::writeError(progress.error(), out.initError());
    out.setHeld(progress->held);
  }

  const PrimaryDial& dial_;
  kj::Own<kj::PromiseFulfiller<void>> released_;  // when the primary drops the sink
};

}  // namespace

PrimaryClient::PrimaryClient(PrimaryDial dial, Credentials credentials, milliseconds attempt)
    : dial_(std::move(dial)),
      credentials_(std::move(credentials)),
      attempt_(attempt),
      accepted_(!dial_.copy),
      thread_([this] { run(); }) {}

PrimaryClient::~PrimaryClient() noexcept { stop(); }

void PrimaryClient::stop() {
  stop_.stop();
  if (thread_.joinable()) thread_.join();
}

void PrimaryClient::run() {
  pthread_setname_np(pthread_self(), "psd-standby");
  // Retry until a daemon has identified itself.
  for (milliseconds pause = kPauseMin;; pause *= 2) {
    const End end = attempt(!accepted_);
    if (stop_.stopped()) return;
    if (end.reached) return dial_.events.ended(end.how, end.why);
    dial_.events.troubled(end.answers, end.why);
    pause = std::min(pause, end.answers ? kRefusedMax : kPauseMax);
    if (!stop_.pause(pause)) return;
  }
}

PrimaryClient::End PrimaryClient::attempt(bool sink) {
  // The process is dead only if every address says so.
  End last{ConnectionEnd::broken, Status(ErrorCode::unavailable, "the primary has no address")};
  bool allDead = !dial_.addresses.empty();
  for (const Address& address : dial_.addresses) {
    if (stop_.stopped()) return last;
    End end = attemptAt(address, sink);
    if (end.reached && end.how != ConnectionEnd::dead) return end;
    if (accepted_ && sink) sink = false;
    allDead = allDead && end.how == ConnectionEnd::dead;
    if (end.answers || !last.answers) last = std::move(end);  // an answer is more informative than silence
  }
  last.how = allDead ? ConnectionEnd::dead : ConnectionEnd::broken;
  last.reached = allDead;
  return last;
}

PrimaryClient::End PrimaryClient::attemptAt(const Address& address, bool sink) {
  bool refused = false;
  auto fd = connectTo(address, attempt_, &refused);
  if (!fd.ok()) {
    return {refused ? ConnectionEnd::dead : ConnectionEnd::broken, fd.status(), refused};
  }
  const auto at = [&](std::string_view what) { return address.toString() + ": " + printable(what, 500); };
  try {
    auto io = kj::setupAsyncIo();
    wire::StopSignal::InLoop stop(stop_, io.provider->getTimer());
    const auto soon = [&](auto promise) { return stop.within(attempt_, kj::mv(promise)); };
    auto socket = soon(streamOver(io, *std::move(fd), address, credentials_.tls)).wait(io.waitScope);
    if (!socket.ok()) return {ConnectionEnd::broken, socket.status(), false, true};
    capnp::TwoPartyClient client(*socket->stream);
    auto login = client.bootstrap().castAs<schema::Login>().loginRequest();
    wire::writeLogin("psd " PSD_VERSION, credentials_.token, login);
    auto in = soon(kj::Promise<capnp::Response<schema::LoginResult>>(login.send().dropPipeline()))
                  .wait(io.waitScope);
    // A peer that rejects the login has not identified itself.
    if (Status status = wire::readStatus(in.getStatus()); !status.ok()) {
      return {ConnectionEnd::broken, {status.error().code, at(status.message())}, false, true};
    }
    if (!in.hasAdmin()) {
      return {ConnectionEnd::broken, wire::forbiddenError(address.toString(), "admin", in), false, true};
    }
    auto request = in.getAdmin().replicateRequest();
    request.setFollower(sink ? dial_.follower : 0);
    request.setPrimary(dial_.primary);
    request.setName(dial_.name.c_str());
    request.setRecords(kRecordFormat);
    request.setFolderTerm(dial_.folderTerm);
    auto own = request.initAddresses(static_cast<unsigned>(dial_.ownAddresses.size()));
    for (unsigned i = 0; i < own.size(); i++) own.set(i, dial_.ownAddresses[i].toString().c_str());
    auto released = kj::newPromiseAndFulfiller<void>();
    if (sink) request.setSink(kj::heap<Sink>(dial_, kj::mv(released.fulfiller)));
    auto taken = soon(kj::Promise<capnp::Response<schema::ReplicateResult>>(request.send().dropPipeline()))
                     .wait(io.waitScope);
    if (taken.getDaemon() != dial_.primary) {
      if (dial_.events.another) dial_.events.another(taken.getFolderTerm());
      return {
          ConnectionEnd::dead, {ErrorCode::standby, at("another process has the primary's address")}, true};
    }
    if (taken.isError()) {
      const Error error = wire::readError(taken.getError());
      if (!accepted_) return {ConnectionEnd::declined, {error.code, at(error.message)}, true};
      return {ConnectionEnd::broken, {ErrorCode::unavailable, at("the connection broke")}, true};
    }
    accepted_ = true;
    *dial_.heardMs = steadyMs();
    stop.orStopped(client.onDisconnect().exclusiveJoin(kj::mv(released.promise))).wait(io.waitScope);
    return {ConnectionEnd::broken, {ErrorCode::unavailable, at("the connection broke")}};
  } catch (const kj::Exception& exception) {
    return {ConnectionEnd::broken, {ErrorCode::unavailable, at(wire::textIn(exception.getDescription()))}};
  }
}

}  // namespace psd

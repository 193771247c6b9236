#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <kj/async-io.h>
#include <kj/debug.h>

#include "common/os/socket.h"
#include "common/status/status.h"
#include "common/wire/client_rpc.h"
#include "schema/psd.capnp.h"

namespace psd {

/// True for an error of a daemon that is away or silent, or has given this trainer up, and not for what the
/// daemon answered itself. What became of what was sent is open then, so that it may be sent again.
inline bool isLost(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::sessionEnded ||
         error.code == ErrorCode::standby;
}

/// One connection to a daemon, what can be called over it, and its end. Whatever the RPC library throws is
/// turned into an Error; by the time such an Error is out, the connection is torn down and references no
/// memory of the caller any more. Belongs to one event loop.
class DaemonConnection {
 public:
  /// `takeDescriptors`: whether the daemon may pass memory along.
  DaemonConnection(kj::AsyncIoContext& io, wire::Socket socket, std::string server,
                   std::chrono::microseconds spin, bool takeDescriptors);
  ~DaemonConnection() { tearDown(); }

  const std::string& server() const { return server_; }
  kj::Timer& timer() const { return timer_; }
  wire::MessageStream& stream() { return KJ_ASSERT_NONNULL(rpc_).stream(); }
  schema::Login::Client& login() { return KJ_ASSERT_NONNULL(login_); }
  /// After setRoles().
  schema::Reading::Client& reading() { return KJ_ASSERT_NONNULL(reading_); }
  /// After setRoles(); null where the daemon does not let this program train.
  kj::Maybe<schema::Training::Client>& training() { return training_; }
  schema::Reader::Client& reader() { return KJ_ASSERT_NONNULL(reader_); }
  schema::Trainer::Client& trainer() { return KJ_ASSERT_NONNULL(trainer_); }
  /// Whether there are parameters to pull here, or also a session to push in.
  bool canPull() const { return reader_ != nullptr; }
  bool canPush() const { return trainer_ != nullptr; }
  /// What the daemon lets this program do.
  void setRoles(schema::Reading::Client reading, kj::Maybe<schema::Training::Client> training,
                Error mayNotTrain) {
    reading_ = kj::mv(reading);
    training_ = kj::mv(training);
    mayNotTrain_ = std::move(mayNotTrain);
  }
  /// Why training() is null.
  const Error& mayNotTrain() const { return mayNotTrain_; }
  void setReader(schema::Reader::Client reader) { reader_ = kj::mv(reader); }
  void setTrainer(schema::Trainer::Client session);
  /// Who names the memory that large values are to be read into.
  void setPlacer(wire::Placer placer) { placer_ = std::move(placer); }

  /// Why nothing can be called any more.
  const std::optional<Error>& ended() const { return ended_; }
  /// Has all calls from now on fail with `why`; the first reason stands.
  void end(Error why);
  /// Calls `tell`, and nobody else any more, once, when the connection has ended; at once where it has. Null:
  /// nobody.
  void whenEnded(std::function<void(const Error&)> tell);
  /// Called once, right before the connection is torn down.
  void beforeTearDown(std::function<void()> letGo) { letGo_ = std::move(letGo); }
  void tearDown();
  /// The daemon is about to hang up, for this reason, and is let go; calls in flight fail with it. Tells
  /// nobody before they do.
  void foretell(Error why);
  /// Ends when the daemon has hung up, or the connection broke.
  kj::Promise<void> whenDisconnected();

  /// What `work()` promises, a Status or a Result; why the connection ended where it has, and what the
  /// library throws as an Error, once the connection is torn down.
  template <class Work>
  auto call(Work work) -> decltype(work()) {
    using Answer = decltype(answerOf(work()));
    if (ended_) return Answer(*ended_);
    return kj::evalNow(kj::mv(work)).catch_([this](kj::Exception&& exception) -> kj::Promise<Answer> {
      return broken(kj::mv(exception)).then([](Error error) -> Answer { return error; });
    });
  }

 private:
  template <class Answer>
  static Answer answerOf(kj::Promise<Answer> promise);
  kj::Promise<Error> broken(kj::Exception&& exception);

  const std::string server_;
  wire::Spinner spinner_;
  kj::Timer& timer_;
  wire::Placer placer_;
  kj::Maybe<wire::ClientRpc> rpc_;  // null once torn down
  kj::Maybe<schema::Login::Client> login_;
  kj::Maybe<schema::Reading::Client> reading_;
  kj::Maybe<schema::Training::Client> training_;
  Error mayNotTrain_;
  kj::Maybe<schema::Reader::Client> reader_;
  kj::Maybe<schema::Trainer::Client> trainer_;
  std::optional<Error> ended_;
  std::function<void(const Error&)> tellEnded_;  // null once called
  std::function<void()> letGo_;                  // null once called
};

}  // namespace psd

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

/// True for an error that means that the daemon is down or unresponsive, or counts this trainer as lost;
/// false for a daemon's answer. The outcome of what was sent is then unknown, so that it may be sent again.
inline bool isLost(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::sessionEnded ||
         error.code == ErrorCode::standby;
}

/// One connection to a daemon: its capabilities, and its end. Exceptions of the RPC library are turned into
/// Errors; when such an Error is returned, the connection is torn down and references no memory of the
/// caller. Belongs to one event loop.
class DaemonConnection {
 public:
  /// `takeDescriptors`: whether the daemon may pass memory files.
  DaemonConnection(kj::AsyncIoContext& io, wire::Socket socket, std::string server,
                   std::chrono::microseconds spin, bool takeDescriptors);
  ~DaemonConnection() { tearDown(); }

  const std::string& server() const { return server_; }
  kj::Timer& timer() const { return timer_; }
  wire::MessageStream& stream() { return KJ_ASSERT_NONNULL(rpc_).stream(); }
  schema::Login::Client& login() { return KJ_ASSERT_NONNULL(login_); }
  /// After setRoles().
  schema::Reading::Client& reading() { return KJ_ASSERT_NONNULL(reading_); }
  /// After setRoles(); null where the daemon does not allow this program to train.
  kj::Maybe<schema::Training::Client>& training() { return training_; }
  schema::Reader::Client& reader() { return KJ_ASSERT_NONNULL(reader_); }
  schema::Trainer::Client& trainer() { return KJ_ASSERT_NONNULL(trainer_); }
  /// Whether this connection has parameters to pull, and a session to push in.
  bool canPull() const { return reader_ != nullptr; }
  bool canPush() const { return trainer_ != nullptr; }
  /// After setRoles(); null where the daemon does not allow this program to administer it.
  kj::Maybe<schema::Admin::Client>& admin() { return admin_; }
  /// Stores what the daemon allows this program to do.
  void setRoles(schema::Reading::Client reading, kj::Maybe<schema::Training::Client> training,
                kj::Maybe<schema::Admin::Client> admin, Error mayNotTrain, Error mayNotAdminister) {
    reading_ = kj::mv(reading);
    training_ = kj::mv(training);
    admin_ = kj::mv(admin);
    mayNotTrain_ = std::move(mayNotTrain);
    mayNotAdminister_ = std::move(mayNotAdminister);
  }
  /// After setPublishing(); null where the daemon does not allow this program to publish versions.
  kj::Maybe<schema::Publishing::Client>& publishing() { return publishing_; }
  void setPublishing(kj::Maybe<schema::Publishing::Client> publishing, Error mayNotPublish) {
    publishing_ = kj::mv(publishing);
    mayNotPublish_ = std::move(mayNotPublish);
  }
  /// Why publishing() is null.
  const Error& mayNotPublish() const { return mayNotPublish_; }
  /// Why training() is null.
  const Error& mayNotTrain() const { return mayNotTrain_; }
  /// Why admin() is null.
  const Error& mayNotAdminister() const { return mayNotAdminister_; }
  void setReader(schema::Reader::Client reader) { reader_ = kj::mv(reader); }
  void setTrainer(schema::Trainer::Client session);
  /// Sets the callback that chooses the memory into which large values are read.
  void setPlacer(wire::Placer placer) { placer_ = std::move(placer); }

  /// Why no call is possible any more.
  const std::optional<Error>& ended() const { return ended_; }
  /// Makes all calls fail with `why` from now on; the first reason stays.
  void end(Error why);
  /// Registers `callback`, in place of an earlier one, to be called once when the connection has ended;
  /// immediately if it has. Null: none.
  void whenEnded(std::function<void(const Error&)> callback);
  /// Called once, right before the connection is torn down.
  void beforeTearDown(std::function<void()> onTearDown) { onTearDown_ = std::move(onTearDown); }
  void tearDown();
  /// The daemon is about to close the connection for this reason: closes this side. Calls in progress fail
  /// with `why`; the whenEnded() callback is not called before they do.
  void announceEnd(Error why);
  /// Resolves when the daemon has closed the connection, or it broke.
  kj::Promise<void> whenDisconnected();

  /// Runs `work()`, whose promise is of a Status or a Result. Returns why the connection has ended if it has;
  /// an exception of the library becomes an Error once the connection is torn down.
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
  kj::Maybe<schema::Admin::Client> admin_;
  kj::Maybe<schema::Publishing::Client> publishing_;
  Error mayNotTrain_, mayNotAdminister_, mayNotPublish_;
  kj::Maybe<schema::Reader::Client> reader_;
  kj::Maybe<schema::Trainer::Client> trainer_;
  std::optional<Error> ended_;
  std::function<void(const Error&)> onEnded_;  // null once called
  std::function<void()> onTearDown_;           // null once called
};

}  // namespace psd

#include "server/client/move_watch.h"

#include <system_error>

#include <pthread.h>

#include "server/client/conversation.h"
#include "server/serving/move_record.h"

namespace psd {

Result<std::optional<DaemonAddresses>> movedAway(const Address& address, schema::LoginResult::Reader login) {
  if (login.getMove() == 0) return std::optional<DaemonAddresses>();
  PSD_ASSIGN_OR_RETURN(auto to, wire::readDaemonAddresses(address.toString(), login.getMovedTo()));
  if (to.empty()) return std::optional<DaemonAddresses>();
  return std::optional(std::move(to));
}

Error movedError(const DaemonAddresses& to) {
  return {ErrorCode::standby, "the model has moved to " + addressesText(to)};
}

MoveWatch::MoveWatch(const Address& address, std::chrono::milliseconds timeout,
                     const Credentials& credentials) {
  try {
    thread_ = std::thread([this, address, timeout, credentials] { run(address, timeout, credentials); });
  } catch (const std::system_error&) {
    notification_.end();
  }
}

MoveWatch::~MoveWatch() {
  stop_.stop();
  if (thread_.joinable()) thread_.join();
}

void MoveWatch::run(const Address& address, std::chrono::milliseconds timeout,
                    const Credentials& credentials) {
  pthread_setname_np(pthread_self(), "psd-moves");
  const auto talk = [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&,
                        kj::Timer& timer) -> kj::Promise<Result<bool>> {
    if (!login.hasReading()) return Result<bool>(false);
    const auto moved = movedAway(address, login);
    if (!moved.ok()) return Result<bool>(moved.error());
    if (*moved) {
      notification_.set(**moved);
      return Result<bool>(true);
    }
    auto reading = login.getReading();
    auto answer = reading.movedRequest().send().then(
        [this](capnp::Response<schema::Reading::MovedResults> answer) -> kj::Promise<Result<bool>> {
          const auto to = wire::readDaemonAddresses("the daemon", answer.getTo());
          if (to.ok()) notification_.set(*to);
          return Result<bool>(true);
        },
        [](kj::Exception&& exception) -> kj::Promise<Result<bool>> {
          // An earlier daemon has no such call.
          if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) return kj::NEVER_DONE;
          return kj::mv(exception);
        });
    auto stop = kj::heap<wire::StopSignal::InLoop>(stop_, timer);
    auto stoppable = stop->orStopped(kj::mv(answer));
    return stoppable.attach(kj::mv(stop));
  };
  // An error is that of the calls beside the watch.
  static_cast<void>(withLogin<bool>(address, credentials, timeout, "", talk, Patience::endless));
  notification_.end();
}

}  // namespace psd

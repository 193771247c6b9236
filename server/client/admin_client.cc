#include "server/client/admin_client.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/wire/convert.h"
#include "common/wire/published_version.h"
#include "server/client/conversation.h"
#include "server/client/live_pull.h"

namespace psd {
namespace {

/// Makes the call that `start(admin)` sends. Returns the text that `textOf(results)` selects, or the error in
/// the results' status.
template <class Start, class TextOf>
Result<std::string> textFromAdmin(const Address& address, const Credentials& credentials,
                                  std::chrono::milliseconds timeout, Start start, TextOf textOf) {
  return withAdmin<std::string>(address, credentials, timeout,
                                [&](schema::Admin::Client admin, capnp::TwoPartyClient&) {
                                  return start(admin).then([textOf](auto results) -> Result<std::string> {
                                    PSD_RETURN_IF_ERROR(wire::readStatus(results.getStatus()));
                                    return std::string(textOf(results).cStr());
                                  });
                                });
}

}  // namespace

Result<std::string> fetchStatusJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials) {
  return withReading(address, credentials, timeout, [](schema::Reading::Client reading) {
    return reading.statusRequest().send().then(
        [](capnp::Response<schema::Reading::StatusResults> response) -> Result<std::string> {
          return std::string(response.getJson().cStr());
        });
  });
}

Result<DaemonAddresses> fetchDaemons(const Address& address, std::chrono::milliseconds timeout,
                                     const Credentials& credentials) {
  return withLogin<DaemonAddresses>(
      address, credentials, timeout, "",
      [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&) -> kj::Promise<Result<DaemonAddresses>> {
        return Result<DaemonAddresses>(wire::readDaemons(address.toString(), login));
      });
}

Result<std::string> fetchHotRowsJson(const Address& address, std::chrono::milliseconds timeout,
                                     const Credentials& credentials) {
  return withReading(address, credentials, timeout, [](schema::Reading::Client reading) {
    return reading.hotRowsRequest().send().then(
        [](capnp::Response<schema::Reading::HotRowsResults> response) -> Result<std::string> {
          const Status status = wire::readStatus(response.getStatus());
          if (!status.ok()) return status.error();
          return std::string(response.getJson().cStr());
        });
  });
}

Result<std::string> reloadDaemon(const Address& address, std::chrono::milliseconds timeout,
                                 const Credentials& credentials) {
  return textFromAdmin(
      address, credentials, timeout,
      [](schema::Admin::Client& admin) { return admin.reloadRequest().send(); },
      [](auto& results) { return results.getChange(); });
}

Result<std::string> takeCheckpoint(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials) {
  return textFromAdmin(
      address, credentials, timeout,
      [](schema::Admin::Client& admin) { return admin.checkpointRequest().send(); },
      [](auto& results) { return results.getPath(); });
}

Result<VersionInfo> publishVersion(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials) {
  return withAdmin<VersionInfo>(
      address, credentials, timeout, [&](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        return admin.publishRequest().send().then(
            [](capnp::Response<schema::VersionResult> answer) { return wire::readVersion(answer); });
      });
}

Result<VersionInfo> rollBackTo(const Address& address, uint64_t number, std::chrono::milliseconds timeout,
                               const Credentials& credentials) {
  return withAdmin<VersionInfo>(
      address, credentials, timeout, [&](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        auto request = admin.rollBackRequest();
        request.setNumber(number);
        return request.send().then(
            [](capnp::Response<schema::VersionResult> answer) { return wire::readVersion(answer); });
      });
}

namespace {

Result<NewestPart> readPart(schema::NewestCheckpoint::Reader in) {
  PSD_RETURN_IF_ERROR(wire::readStatus(in.getStatus()));
  NewestPart part{
      {in.getPartition(), in.getOf()}, {in.getNumber(), in.getVersion(), in.getCrc()}, in.getLogged(), {}};
  if (in.getWhole().size() == 0) return part;
  PSD_ASSIGN_OR_RETURN(part.whole,
                       parseWhole(std::string_view(in.getWhole().cStr()), std::string(kWholeName)));
  return part;
}

}  // namespace

Result<NewestPart> fetchNewestPart(const Address& address, std::chrono::milliseconds timeout,
                                   const Credentials& credentials) {
  return withAdmin<NewestPart>(
      address, credentials, timeout, [](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        return admin.newestCheckpointRequest().send().then(
            [](capnp::Response<schema::NewestCheckpoint> response) { return readPart(response); });
      });
}

Status recordWhole(const Address& address, const WholeCheckpoint& whole, std::chrono::milliseconds timeout,
                   const Credentials& credentials) {
  return withAdmin<bool>(
             address, credentials, timeout,
             [&whole](schema::Admin::Client admin, capnp::TwoPartyClient&) {
               auto request = admin.recordWholeRequest();
               request.setDocument(formatWhole(whole).c_str());
               return request.send().then(
                   [](capnp::Response<schema::Admin::RecordWholeResults> response) -> Result<bool> {
                     PSD_RETURN_IF_ERROR(wire::readStatus(response.getStatus()));
                     return true;
                   });
             })
      .status();
}

Result<std::string> removeTrainer(const Address& address, Rank rank, std::chrono::milliseconds timeout,
                                  const Credentials& credentials) {
  return textFromAdmin(
      address, credentials, timeout,
      [rank](schema::Admin::Client& admin) {
        auto request = admin.removeTrainerRequest();
        request.setRank(rank.value);
        return request.send();
      },
      [](auto& results) { return results.getRemoved(); });
}

Result<std::string> setKey(const Address& address, const std::string& assignment,
                           std::chrono::milliseconds timeout, const Credentials& credentials) {
  return textFromAdmin(
      address, credentials, timeout,
      [&](schema::Admin::Client& admin) {
        auto request = admin.setRequest();
        request.setAssignment(assignment.c_str());
        return request.send();
      },
      [](auto& results) { return results.getChange(); });
}

Result<std::string> checkChange(const Address& address, const std::string& assignment,
                                std::chrono::milliseconds timeout, const Credentials& credentials) {
  return textFromAdmin(
      address, credentials, timeout,
      [&](schema::Admin::Client& admin) {
        auto request = admin.checkChangeRequest();
        request.setAssignment(assignment.c_str());
        return request.send();
      },
      [](auto& results) { return results.getChange(); });
}

namespace {

/// An admin call that returns only a status.
template <class Request>
Status acknowledged(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials,
                    Request make) {
  return withAdmin<bool>(address, credentials, timeout,
                         [&](schema::Admin::Client admin, capnp::TwoPartyClient&) {
                           return make(admin).send().then([](auto&& response) -> Result<bool> {
                             PSD_RETURN_IF_ERROR(wire::readStatus(response.getStatus()));
                             return true;
                           });
                         })
      .status();
}

}  // namespace

Status switchOver(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials) {
  return acknowledged(address, timeout, credentials,
                      [](schema::Admin::Client& admin) { return admin.switchOverRequest(); });
}

Status recoverDaemon(const Address& address, std::chrono::milliseconds timeout,
                     const Credentials& credentials) {
  return acknowledged(address, timeout, credentials,
                      [](schema::Admin::Client& admin) { return admin.recoverRequest(); });
}

Result<std::string> fetchEventsJson(const Address& address, std::chrono::milliseconds timeout,
                                    const Credentials& credentials) {
  return withAdmin<std::string>(
      address, credentials, timeout, [](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        return admin.eventsRequest().send().then(
            [](capnp::Response<schema::Admin::EventsResults> response) -> Result<std::string> {
              return std::string(response.getJson().cStr());
            });
      });
}

Status followEvents(const Address& address, std::chrono::milliseconds timeout, const Credentials& credentials,
                    const std::function<Result<uint64_t>(const std::string& json)>& tell) {
  using Outcome = Result<bool>;
  std::function<kj::Promise<Outcome>(schema::Admin::Client, uint64_t)> next = [&](schema::Admin::Client admin,
                                                                                  uint64_t after) {
    auto request = admin.eventsRequest();
    request.setAfter(after);
    request.setWait(true);
    return request.send().then(
        [&next, &tell,
         admin](capnp::Response<schema::Admin::EventsResults> events) mutable -> kj::Promise<Outcome> {
          const Result<uint64_t> told = tell(events.getJson().cStr());
          if (!told.ok()) return Outcome(told.error());
          return next(kj::mv(admin), *told);
        });
  };
  return withLogin<bool>(
             address, credentials, timeout, "",
             [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&) -> kj::Promise<Outcome> {
               if (!login.hasAdmin())
                 return Outcome(wire::forbiddenError(address.toString(), "admin", login));
               return next(login.getAdmin(), 0);
             },
             Patience::endless)
      .status();
}

Result<LiveModel> fetchModel(const Address& address, std::chrono::milliseconds timeout,
                             const Credentials& credentials) {
  using Answer = Result<LiveModel>;
  return withLogin<LiveModel>(
      address, credentials, timeout, "",
      [&](schema::LoginResult::Reader login, capnp::TwoPartyClient&) -> kj::Promise<Answer> {
        if (!login.hasReading()) return Answer(wire::forbiddenError(address.toString(), "reader", login));
        return pullLiveModel(login.getReading());
      });
}

Status stopDaemon(const Address& address, const std::string& reason, std::chrono::milliseconds timeout,
                  const Credentials& credentials) {
  return withAdmin<bool>(
             address, credentials, timeout,
             [&](schema::Admin::Client admin, capnp::TwoPartyClient& client) {
               auto request = admin.stopRequest();
               request.setReason(reason.c_str());
               request.setWait(true);
               return request.send().then(
                   [&](capnp::Response<schema::Admin::StopResults> response) -> kj::Promise<Result<bool>> {
                     const Status saved = wire::readStatus(response.getStatus());
                     Result<bool> outcome = true;
                     if (!saved.ok()) {
                       outcome =
                           Error{saved.error().code, address.toString() + " has stopped; " + saved.message()};
                     }
                     return client.onDisconnect().then([outcome] { return outcome; });
                   });
             })
      .status();
}

}  // namespace psd

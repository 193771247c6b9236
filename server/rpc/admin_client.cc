#include "server/rpc/admin_client.h"

#include <cstdio>

#include <capnp/rpc-twoparty.h>
#include <fmt/format.h>
#include <kj/async-io.h>

#include "common/os/socket.h"
#include "common/wire/convert.h"
#include "schema/psd.capnp.h"

namespace psd {
namespace {

constexpr const char* kGoesOn = "; the daemon goes on with it, see its log";

std::string noAnswer(std::chrono::milliseconds timeout) {
  char text[64];
  std::snprintf(text, sizeof text, "no answer within %g s", static_cast<double>(timeout.count()) / 1000);
  return text;
}

/// Connects, logs in, and runs `talk(admin, network)`; whatever the library throws becomes an Error.
/// `late` is what to add to it when the daemon was asked and has not answered in time.
template <class T, class Talk>
Result<T> withAdmin(const Address& address, std::chrono::milliseconds timeout, const char* late, Talk talk) {
  PSD_ASSIGN_OR_RETURN(OwnFd fd, connectTo(address, timeout));
  bool asked = false;
  try {
    auto io = kj::setupAsyncIo();
    auto socket =
        io.lowLevelProvider->wrapSocketFd(fd.release(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                            kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                            kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
    capnp::TwoPartyClient client(*socket);
    auto login = client.bootstrap().castAs<schema::Login>().loginRequest();
    login.setProtocolVersion(wire::kProtocolVersion);
    login.setPeer("psd " PSD_VERSION);
    auto conversation =
        login.send().then([&](capnp::Response<schema::LoginResult> answer) -> kj::Promise<Result<T>> {
          const Status status = wire::readStatus(answer.getStatus());
          if (!status.ok()) return Result<T>(status.error());
          if (!answer.hasAdmin()) {
            return Result<T>(ErrorCode::invalidArgument,
                             address.toString() + " does not let this caller administer it");
          }
          asked = true;
          return talk(answer.getAdmin(), client);
        });
    return io.provider->getTimer()
        .timeoutAfter(timeout.count() * kj::MILLISECONDS, kj::mv(conversation))
        .wait(io.waitScope);
  } catch (const kj::Exception& exception) {
    if (exception.getType() == kj::Exception::Type::OVERLOADED) {
      return Error{ErrorCode::deadlineExceeded,
                   address.toString() + ": " + noAnswer(timeout) + (asked ? late : "")};
    }
    if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) {
      return Error{
          ErrorCode::protocolMismatch,
          fmt::format("{}: the daemon speaks another protocol than version {}, which this program speaks",
                      address.toString(), wire::kProtocolVersion)};
    }
    return Error{ErrorCode::unavailable,
                 address.toString() + ": the connection broke" +
                     (asked ? " before the daemon had answered" : "; is this a psd daemon?")};
  }
}

}  // namespace

Result<std::string> fetchStatusJson(const Address& address, std::chrono::milliseconds timeout) {
  return withAdmin<std::string>(
      address, timeout, "", [](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        return admin.statusRequest().send().then(
            [](capnp::Response<schema::Admin::StatusResults> response) -> Result<std::string> {
              return std::string(response.getJson().cStr());
            });
      });
}

Result<std::string> fetchHotRowsJson(const Address& address, std::chrono::milliseconds timeout) {
  return withAdmin<std::string>(
      address, timeout, "", [](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        return admin.hotRowsRequest().send().then(
            [](capnp::Response<schema::Admin::HotRowsResults> response) -> Result<std::string> {
              const Status status = wire::readStatus(response.getStatus());
              if (!status.ok()) return status.error();
              return std::string(response.getJson().cStr());
            });
      });
}

Result<std::string> reloadDaemon(const Address& address, std::chrono::milliseconds timeout) {
  return withAdmin<std::string>(
      address, timeout, kGoesOn, [](schema::Admin::Client admin, capnp::TwoPartyClient&) {
        return admin.reloadRequest().send().then(
            [](capnp::Response<schema::Admin::ReloadResults> response) -> Result<std::string> {
              Status status = wire::readStatus(response.getStatus());
              if (!status.ok()) return status.error();
              return std::string(response.getChange().cStr());
            });
      });
}

Status stopDaemon(const Address& address, const std::string& reason, std::chrono::milliseconds timeout) {
  return withAdmin<bool>(
             address, timeout, kGoesOn,
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

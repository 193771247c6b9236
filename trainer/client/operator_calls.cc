#include "trainer/client/operator_calls.h"

#include <string_view>

#include "common/wire/convert.h"
#include "common/wire/login.h"
#include "trainer/client/transport/sanitized.h"

namespace psd {
namespace {

using Text = Result<std::string>;

constexpr size_t kChangeBytesMax = 64 << 10;

/// Runs `work(admin)`, or fails where the caller may not administer the daemon.
template <class Work>
kj::Promise<Text> asAdmin(DaemonConnection& connection, Work work) {
  return connection.call([&]() -> kj::Promise<Text> {
    auto& admin = connection.admin();
    if (admin == nullptr) return Text(connection.mayNotAdminister());
    return work(KJ_ASSERT_NONNULL(admin));
  });
}

/// The text of an answer with a status.
Text textOf(schema::Acknowledgement::Reader status, capnp::Text::Reader text) {
  const Status outcome = wire::readStatus(status);
  if (!outcome.ok()) return sanitized(outcome.error());
  return std::string(wire::textIn(text));
}

}  // namespace

kj::Promise<Text> readStatus(DaemonConnection& connection) {
  return connection.call([&connection] {
    return connection.reading().statusRequest().send().then(
        [](capnp::Response<schema::Reading::StatusResults> answer) {
          return Text(std::string(wire::textIn(answer.getJson())));
        },
        [](kj::Exception&& exception) -> Text {
          const std::string reason(wire::textIn(exception.getDescription()));
          if (const size_t at = reason.find(wire::kRefused); at != std::string::npos) {
            const std::string why = reason.substr(at + std::string_view(wire::kRefused).size());
            return Error{ErrorCode::overloaded, printable(why, 500)};
          }
          if (exception.getType() == kj::Exception::Type::OVERLOADED) {  // another such call is waiting
            return Error{ErrorCode::overloaded, printable(reason, 500)};
          }
          kj::throwFatalException(kj::mv(exception));
        });
  });
}

kj::Promise<Text> setKey(DaemonConnection& connection, const std::string& assignment) {
  return asAdmin(connection, [&assignment](schema::Admin::Client& admin) {
    auto request = admin.setRequest();
    request.setAssignment(assignment.c_str());
    return request.send().then([](capnp::Response<schema::Admin::SetResults> answer) -> Text {
      PSD_ASSIGN_OR_RETURN(const std::string change, textOf(answer.getStatus(), answer.getChange()));
      return printable(change, kChangeBytesMax);
    });
  });
}

kj::Promise<Text> checkKey(DaemonConnection& connection, const std::string& assignment) {
  return asAdmin(connection, [&assignment](schema::Admin::Client& admin) {
    auto request = admin.checkChangeRequest();
    request.setAssignment(assignment.c_str());
    return request.send().then(
        [](capnp::Response<schema::Admin::CheckChangeResults> answer) {
          return textOf(answer.getStatus(), answer.getChange());
        },
        [](kj::Exception&& exception) -> Text {
          if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) return std::string();
          kj::throwFatalException(kj::mv(exception));
        });
  });
}

kj::Promise<Text> takeCheckpoint(DaemonConnection& connection) {
  return asAdmin(connection, [](schema::Admin::Client& admin) {
    return admin.checkpointRequest().send().then(
        [](capnp::Response<schema::Admin::CheckpointResults> answer) {
          return textOf(answer.getStatus(), answer.getPath());
        });
  });
}

}  // namespace psd

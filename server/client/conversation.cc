#include "server/client/conversation.h"

#include <string_view>

#include <fmt/format.h>

#include "common/os/http_answer.h"
#include "common/text/quantity.h"
#include "common/tls/refusal.h"
#include "server/client/refusal.h"

namespace psd {
namespace {

std::string noAnswer(std::chrono::milliseconds timeout) {
  return "no answer within " + durationText(timeout);
}

/// Whether the address serves HTTP, such as the daemon's page. Such a server lets a login time out.
bool speaksHttp(const Address& address) {
  constexpr std::chrono::milliseconds kTimeout{500};
  return !address.tls && !httpAnswer(address, "/healthz", kTimeout).empty();
}

}  // namespace

Error brokenOff(const kj::Exception& exception, const Address& address, std::chrono::milliseconds timeout,
                Stage stage, const char* late) {
  const std::string place = address.toString() + ": ";
  if (exception.getType() == kj::Exception::Type::OVERLOADED) {
    if (stage == Stage::request) return {ErrorCode::deadlineExceeded, place + noAnswer(timeout) + late};
    if (!speaksHttp(address)) return {ErrorCode::deadlineExceeded, place + noAnswer(timeout)};
    return {ErrorCode::protocolMismatch,
            place + "this is an HTTP port; use an address of the daemon's `listen`"};
  }
  if (exception.getType() == kj::Exception::Type::UNIMPLEMENTED) {
    return {ErrorCode::protocolMismatch,
            fmt::format("{}the daemon speaks another protocol than version {}, which this program speaks",
                        place, wire::kProtocolVersion)};
  }
  const std::string_view why = wire::textIn(exception.getDescription());
  if (const size_t at = why.find(wire::kRefused); at != std::string_view::npos) {
    return {ErrorCode::overloaded,
            place + printable(why.substr(at + std::string_view(wire::kRefused).size()), 500)};
  }
  if (isTlsRefusal(why)) return {ErrorCode::unauthenticated, place + printable(why)};
  return {ErrorCode::unavailable,
          place + "the connection broke" +
              (stage == Stage::request ? " before the daemon answered" : "; is this a psd daemon?")};
}

}  // namespace psd

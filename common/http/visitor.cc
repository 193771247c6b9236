#include "common/http/visitor.h"

#include <kj/debug.h>

#include "common/http/header_text.h"
#include "common/log/log_line.h"

namespace psd {
namespace {

constexpr size_t kRestBytesMax = 65536;

}  // namespace

/// The answer to one request. Belongs to an event loop.
class Visitor::Answering final : public Response {
 public:
  /// Both outlive it.
  Answering(Response& inner, LastAnswer& lastAnswer, bool last)
      : inner_(inner), lastAnswer_(lastAnswer), last_(last) {}

  kj::Own<kj::AsyncOutputStream> send(kj::uint code, kj::StringPtr reason, const kj::HttpHeaders& headers,
                                      kj::Maybe<uint64_t> size) override {
    begun_ = true;
    return lastAnswer_.begin(last_, [&] { return inner_.send(code, reason, headers, size); });
  }
  kj::Own<kj::WebSocket> acceptWebSocket(const kj::HttpHeaders& headers) override {
    begun_ = true;
    return inner_.acceptWebSocket(headers);
  }
  bool begun() const { return begun_; }

 private:
  Response& inner_;
  LastAnswer& lastAnswer_;
  const bool last_;
  bool begun_ = false;
};

kj::Promise<void> Visitor::request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders& headers,
                                   kj::AsyncInputStream& body, Response& response) {
  if (stream_.ended()) return KJ_EXCEPTION(DISCONNECTED, "a request after the connection's last one");
  bool last = stream_.isHttp10();
  KJ_IF_MAYBE (value, headers.get(kj::HttpHeaderId::CONNECTION)) {
    last = last || listsWord({value->begin(), value->size()}, "close");
  }
  auto answering = kj::heap<Answering>(response, lastAnswer_, last);
  Answering& answer = *answering;
  auto done = kj::evalNow([&] {
                return site_.request(stream_.peer(), method, url, headers, body, answer);
              }).catch_([this, &answer](kj::Exception&& exception) -> kj::Promise<void> {
    // Peers that disconnect are not worth a warning.
    if (answer.begun() || exception.getType() != kj::Exception::Type::FAILED) return kj::mv(exception);
    return failed(answer, exception);
  });
  if (last) {
    // Closing a socket with unread data may destroy the answer before the peer reads it.
    done = done.then([this, &body] { return readRest(body); }).then([this] { stream_.end(); });
  }
  return done.attach(kj::mv(answering));
}

kj::Promise<void> Visitor::failed(Response& response, const kj::Exception& exception) const {
  logLine(spdlog::level::warn, {.event = "request_failed", .limited = true}, "a request over HTTP failed: {}",
          exception.getDescription().cStr());
  return replies_.text(response, 500, "Internal Server Error", "internal error; see the log");
}

kj::Promise<void> Visitor::readRest(kj::AsyncInputStream& body) const {
  return replies_.inTime(body.readAllBytes(kRestBytesMax)).then([](auto) {}, [](kj::Exception&&) {});
}

}  // namespace psd

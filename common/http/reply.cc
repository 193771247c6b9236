#include "common/http/reply.h"

#include <utility>

namespace psd {

kj::HttpHeaders Replies::headers(kj::StringPtr type) const {
  kj::HttpHeaders headers(names_.table);
  headers.set(kj::HttpHeaderId::CONTENT_TYPE, kj::str(type));
  headers.set(names_.cacheControl, "no-store");
  headers.set(names_.contentSecurityPolicy, "default-src 'self'; frame-ancestors 'none'; base-uri 'none'");
  headers.set(names_.contentTypeOptions, "nosniff");
  headers.set(names_.referrerPolicy, "no-referrer");
  return headers;
}

kj::Promise<void> Replies::send(kj::HttpService::Response& response, Answer answer) const {
  kj::HttpHeaders all = headers(answer.type.c_str());
  if (answer.code == 405) all.set(names_.allow, answer.allow);
  if (answer.code == 401) all.set(names_.authenticate, "Bearer");
  auto content = answer.content ? answer.content : std::make_shared<const std::string>();
  auto stream = response.send(answer.code, answer.reason, all, content->size());
  auto written = content->empty() ? kj::Promise<void>(kj::READY_NOW) : write(*stream, content);
  return written.attach(kj::mv(stream));
}

kj::Promise<void> Replies::text(kj::HttpService::Response& response, kj::uint code, kj::StringPtr reason,
                                std::string line) const {
  line += '\n';
  return send(
      response,
      {.code = code, .reason = reason, .content = std::make_shared<const std::string>(std::move(line))});
}

kj::Own<kj::AsyncOutputStream> Replies::begin(kj::HttpService::Response& response, kj::StringPtr type) const {
  return response.send(200, "OK", headers(type));
}

kj::Promise<void> Replies::write(kj::AsyncOutputStream& stream,
                                 std::shared_ptr<const std::string> text) const {
  auto written = stream.write(text->data(), text->size());
  return inTime(kj::mv(written)).attach(kj::heap(std::move(text)));
}

}  // namespace psd

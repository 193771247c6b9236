#pragma once

#include <kj/compat/http.h>

#include "common/http/http_site.h"
#include "common/http/http_stream.h"
#include "common/http/last_answer.h"
#include "common/http/reply.h"

namespace psd {

/// Passes one connection's requests to the site together with the peer's identity, and ends the connection
/// after the answer if the peer expects that. Belongs to an event loop.
class Visitor final : public kj::HttpService {
 public:
  /// All outlive it.
  Visitor(HttpSite& site, const Replies& replies, HttpStream& stream, LastAnswer& lastAnswer)
      : site_(site), replies_(replies), stream_(stream), lastAnswer_(lastAnswer) {}

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders& headers,
                            kj::AsyncInputStream& body, Response& response) override;

 private:
  class Answering;

  /// Answers a request that failed before its answer started.
  kj::Promise<void> failed(Response& response, const kj::Exception& exception) const;
  /// Reads the rest of a body, up to a limit.
  kj::Promise<void> readRest(kj::AsyncInputStream& body) const;

  HttpSite& site_;
  const Replies& replies_;
  HttpStream& stream_;
  LastAnswer& lastAnswer_;
};

}  // namespace psd

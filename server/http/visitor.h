#pragma once

#include <kj/compat/http.h>

#include "server/http/http_stream.h"
#include "server/http/last_answer.h"
#include "server/http/site.h"

namespace psd {

/// Asks the site what one connection asks, says who is at the connection's other end, and lets the connection
/// end with the answer where the peer waits for that. Belongs to the control loop.
class Visitor final : public kj::HttpService {
 public:
  /// All outlive it.
  Visitor(Site& site, HttpStream& stream, LastAnswer& lastAnswer)
      : site_(site), stream_(stream), lastAnswer_(lastAnswer) {}

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders& headers,
                            kj::AsyncInputStream& body, Response& response) override;

 private:
  class Answering;

  Site& site_;
  HttpStream& stream_;
  LastAnswer& lastAnswer_;
};

}  // namespace psd

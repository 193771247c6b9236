#pragma once

#include <kj/compat/http.h>

#include "common/http/http_peer.h"

namespace psd {

/// Request handler of an HTTP server. Belongs to one event loop.
class HttpSite {
 public:
  using Response = kj::HttpService::Response;

  virtual ~HttpSite() noexcept(false) = default;
  /// Answers a request from `peer`. All arguments outlive the returned promise.
  virtual kj::Promise<void> request(const HttpPeer& peer, kj::HttpMethod method, kj::StringPtr url,
                                    const kj::HttpHeaders& headers, kj::AsyncInputStream& body,
                                    Response& response) = 0;
};

}  // namespace psd

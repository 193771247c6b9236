#pragma once

#include <kj/compat/http.h>

#include "common/http/http_peer.h"

namespace psd {

/// Answers requests over HTTP. Belongs to one event loop.
class HttpSite {
 public:
  using Response = kj::HttpService::Response;

  virtual ~HttpSite() noexcept(false) = default;
  /// Answers a request of the connection with that peer. All outlive what it gives.
  virtual kj::Promise<void> request(const HttpPeer& peer, kj::HttpMethod method, kj::StringPtr url,
                                    const kj::HttpHeaders& headers, kj::AsyncInputStream& body,
                                    Response& response) = 0;
};

}  // namespace psd

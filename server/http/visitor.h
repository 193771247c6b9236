#pragma once

#include <utility>

#include <kj/compat/http.h>

#include "server/http/site.h"

namespace psd {

/// Asks the site what one connection asks, and says who is at the connection's other end. Belongs to the
/// control loop.
class Visitor final : public kj::HttpService {
 public:
  /// `site` outlives it.
  Visitor(Site& site, HttpPeer peer) : site_(site), peer_(std::move(peer)) {}

  kj::Promise<void> request(kj::HttpMethod method, kj::StringPtr url, const kj::HttpHeaders& headers,
                            kj::AsyncInputStream& body, Response& response) override {
    return site_.request(peer_, method, url, headers, body, response);
  }

 private:
  Site& site_;
  const HttpPeer peer_;
};

}  // namespace psd

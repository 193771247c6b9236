#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>
#include <kj/compat/http.h>

#include "common/http/http_site.h"
#include "common/http/last_answer.h"
#include "common/http/reply.h"
#include "common/os/address.h"
#include "common/os/socket.h"
#include "common/tls/tls_context.h"

namespace psd {

/// Addresses, limits and callbacks of a listener.
struct HttpListenerOptions {
  std::vector<Address> listen;
  uint32_t connections = 64;             ///< open at once
  std::chrono::milliseconds timeout{0};  ///< limit for receiving a request
  /// Returns the current TLS context for tls:// addresses; null: no longer configured.
  std::function<std::shared_ptr<const TlsContext>()> tls;
  std::function<void(const std::string& why)> handshakeRefused;
  std::function<void(uint64_t open)> counted;  ///< called when a connection opens or closes
  std::function<void()> refused;               ///< called when a connection over `connections` is refused
};

/// The listening sockets of an HTTP site, and their connections with their limits. Belongs to an event loop.
class HttpListener final : private kj::TaskSet::ErrorHandler, private kj::HttpServerErrorHandler {
 public:
  /// All but `options` outlive it.
  HttpListener(kj::AsyncIoContext& io, const kj::HttpHeaderTable& table, HttpSite& site,
               const Replies& replies, HttpListenerOptions options);
  ~HttpListener() noexcept(false);

  /// Binds the addresses and accepts connections. Blocks during name resolution. The error names the key
  /// http.listen.
  Status start();
  /// Human-readable URLs: "http://localhost:5580/"; for a Unix socket its address.
  std::vector<std::string> places() const;

 private:
  kj::Promise<void> accept(kj::ConnectionReceiver& receiver, bool tls);
  void admit(kj::Own<kj::AsyncIoStream> stream, bool tls);
  kj::Promise<void> serve(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer);
  /// Performs the TLS handshake within the timeout, then serves.
  kj::Promise<void> serveTls(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer);
  void taskFailed(kj::Exception&& exception) override;
  /// Handles requests that kj-http cannot parse, and answers that broke off.
  kj::Promise<void> handleApplicationError(kj::Exception exception,
                                           kj::Maybe<kj::HttpService::Response&> response) override;

  kj::AsyncIoContext& io_;
  kj::Timer& timer_;
  const Replies& replies_;
  const HttpListenerOptions options_;
  uint64_t open_ = 0;
  LastAnswer lastAnswer_;
  kj::HttpServer server_;
  std::vector<ListenSockets> sockets_;
  std::vector<kj::Own<kj::ConnectionReceiver>> receivers_;
  kj::TaskSet connections_, tasks_;
};

}  // namespace psd

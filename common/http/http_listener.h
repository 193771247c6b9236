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

/// Where a listener listens, what it stays under, and what it asks and tells.
struct HttpListenerOptions {
  std::vector<Address> listen;
  uint32_t connections = 64;             ///< open at once
  std::chrono::milliseconds timeout{0};  ///< for a request to be complete
  /// What tls:// addresses speak TLS with, as of now; null: nothing any more.
  std::function<std::shared_ptr<const TlsContext>()> tls;
  std::function<void(const std::string& why)> handshakeRefused;
  std::function<void(uint64_t open)> counted;  ///< whenever a connection came or went
  std::function<void()> refused;               ///< one over `connections` came
};

/// Sockets on which a site answers over HTTP, and their connections with their limits. Belongs to an event
/// loop.
class HttpListener final : private kj::TaskSet::ErrorHandler, private kj::HttpServerErrorHandler {
 public:
  /// All but `options` outlive it.
  HttpListener(kj::AsyncIoContext& io, const kj::HttpHeaderTable& table, HttpSite& site,
               const Replies& replies, HttpListenerOptions options);
  ~HttpListener() noexcept(false);

  /// Binds the addresses and accepts. Blocks where a name is looked up. The error names the key http.listen.
  Status start();
  /// Where it is reached, for people: "http://localhost:5580/"; of a Unix socket its address.
  std::vector<std::string> places() const;

 private:
  kj::Promise<void> accept(kj::ConnectionReceiver& receiver, bool tls);
  void admit(kj::Own<kj::AsyncIoStream> stream, bool tls);
  kj::Promise<void> serve(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer);
  /// Shakes hands, within the timeout, and serves.
  kj::Promise<void> meet(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer);
  void taskFailed(kj::Exception&& exception) override;
  /// Of what kj-http could not read, and of answers that broke off.
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

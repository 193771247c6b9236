#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>
#include <kj/compat/http.h>

#include "common/os/socket.h"
#include "server/config/http_config.h"
#include "server/http/history.h"
#include "server/http/hooks.h"
#include "server/http/last_answer.h"
#include "server/http/live_feed.h"
#include "server/http/reply.h"
#include "server/http/site.h"
#include "server/http/visitor.h"

namespace psd {

/// The daemon's HTTP side: its listeners and connections with their limits, and the clock by which it looks
/// at the daemon once a second. Belongs to the control loop's thread.
class HttpSide final : private kj::TaskSet::ErrorHandler, private kj::HttpServerErrorHandler {
 public:
  /// `io` outlives it, and so does what `hooks` touch.
  HttpSide(kj::AsyncIoContext& io, const HttpConfig& config, HttpHooks hooks);
  ~HttpSide() noexcept(false);

  /// Binds the addresses and accepts. Blocks where a name is looked up.
  Status start();
  /// Where the page is, for people: "http://localhost:5580/"; of a Unix socket its address.
  std::vector<std::string> places() const;

 private:
  kj::Promise<void> accept(kj::ConnectionReceiver& receiver, bool tls);
  void admit(kj::Own<kj::AsyncIoStream> stream, bool tls);
  kj::Promise<void> serve(kj::Own<kj::AsyncIoStream> stream, HttpPeer peer);
  /// Shakes hands, within http.timeout_ms, and serves.
  kj::Promise<void> meet(kj::Own<kj::AsyncIoStream> stream);
  kj::Promise<void> keepLooking();
  void look();
  /// What those who follow are told.
  nlohmann::ordered_json documentOf(const DaemonStatus& status) const;

  void taskFailed(kj::Exception&& exception) override;
  /// Of what kj-http could not read, and of answers that broke off.
  kj::Promise<void> handleApplicationError(kj::Exception exception,
                                           kj::Maybe<kj::HttpService::Response&> response) override;

  kj::AsyncIoContext& io_;
  kj::Timer& timer_;
  const HttpConfig config_;
  const std::function<DaemonStatus()> status_;
  const std::function<DaemonEvents()> events_;
  const std::function<DaemonRows(const DaemonStatus&)> daemons_;
  const std::function<std::shared_ptr<const TlsContext>()> tls_;
  const std::function<void(const std::string&)> handshakeRefused_;
  HttpMetrics metrics_;
  History history_;
  LiveFeed feed_;
  kj::HttpHeaderTable::Builder builder_;
  const HttpHeaderNames names_;
  const kj::Own<kj::HttpHeaderTable> table_;
  const Replies replies_;
  Site site_;
  LastAnswer lastAnswer_;
  kj::HttpServer server_;
  std::vector<ListenSockets> sockets_;
  std::vector<kj::Own<kj::ConnectionReceiver>> receivers_;
  kj::TaskSet connections_, tasks_;
};

}  // namespace psd

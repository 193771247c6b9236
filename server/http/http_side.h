#pragma once

#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>
#include <kj/compat/http.h>

#include "common/http/http_listener.h"
#include "common/http/reply.h"
#include "server/config/http_config.h"
#include "server/http/history.h"
#include "server/http/hooks.h"
#include "server/http/live_feed.h"
#include "server/http/site.h"

namespace psd {

/// The daemon's HTTP side: listener, site, and the timer that samples the daemon's status once a second.
/// Belongs to the control loop's thread.
class HttpSide final : private kj::TaskSet::ErrorHandler {
 public:
  /// `io` and everything that `hooks` refer to outlive it.
  HttpSide(kj::AsyncIoContext& io, const HttpConfig& config, HttpHooks hooks);
  ~HttpSide() noexcept(false);

  /// Binds the addresses and starts accepting. Blocks while a name is resolved.
  Status start();
  /// Human-readable addresses of the page: "http://localhost:5580/"; for a Unix socket its address.
  std::vector<std::string> places() const { return listener_.places(); }

 private:
  kj::Promise<void> keepSampling();
  void sampleStatus();
  /// The document of the feeds, without events.
  nlohmann::ordered_json documentOf(const DaemonStatus& status) const;

  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  const std::function<DaemonStatus()> status_;
  const std::function<DaemonEvents()> events_;
  const std::function<DaemonRows(const DaemonStatus&)> daemons_;
  HttpMetrics metrics_;
  History history_;
  LiveFeeds feeds_;
  kj::HttpHeaderTable::Builder builder_;
  const HttpHeaderNames names_;
  const kj::Own<kj::HttpHeaderTable> table_;
  const Replies replies_;
  Site site_;
  HttpListener listener_;
  kj::TaskSet tasks_;
};

}  // namespace psd

#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include <kj/compat/http.h>

#include "common/http/host_names.h"
#include "common/http/http_site.h"
#include "common/http/reply.h"
#include "server/config/http_config.h"
#include "server/http/history.h"
#include "server/http/hooks.h"
#include "server/http/http_metrics.h"
#include "server/http/live_feed.h"
#include "server/http/watchers.h"

namespace psd {

/// Handles HTTP requests: the page and its files, endpoints for programs, and administrators' actions by
/// POST. Belongs to the control loop.
class Site final : public HttpSite, private kj::TaskSet::ErrorHandler {
 public:
  /// All arguments except `hooks` and `config` outlive it.
  Site(HttpHooks hooks, const HttpConfig& config, const HttpHeaderNames& names, const Replies& replies,
       HttpMetrics& metrics, const History& history, LiveFeeds& feeds);

  kj::Promise<void> request(const HttpPeer& peer, kj::HttpMethod method, kj::StringPtr url,
                            const kj::HttpHeaders& headers, kj::AsyncInputStream& body,
                            Response& response) override;

 private:
  static constexpr size_t kBodyBytesMax = 4096;

  /// A resource for GET and HEAD.
  struct Place {
    HttpRole needed = HttpRole::reader;
    std::function<kj::Promise<void>(Response&)> answer;
  };

  void addPlaces();
  kj::Promise<void> metrics(Response& response) const;
  kj::Promise<void> json(Response& response, kj::uint code, kj::StringPtr reason,
                         const nlohmann::ordered_json& document) const;
  /// Sends a document that may be large, or 503 if there is no memory for it.
  kj::Promise<void> document(Response& response, std::string type, std::string text) const;
  HttpCaller callerOf(const HttpPeer& peer, const kj::HttpHeaders& headers) const;
  /// Rejects a caller; strangers are answered after a delay.
  kj::Promise<void> refuse(Response& response, const HttpAccess& access) const;
  kj::Promise<void> act(const HttpAction& action, std::string by, const kj::HttpHeaders& headers,
                        kj::AsyncInputStream& body, Response& response);
  /// Runs an action once its arguments have arrived. The action logs the caller.
  kj::Promise<void> run(const HttpAction& action, const std::string& by, const std::string& arguments,
                        Response& response);
  kj::Promise<void> ready(Response& response) const;
  kj::Promise<void> follow(Response& response, HttpCaller caller, HttpRole role);
  /// Until the reader disconnects or loses access.
  kj::Promise<void> streamNext(kj::AsyncOutputStream& stream, const HttpCaller& caller, HttpRole role,
                               uint64_t tick);
  void taskFailed(kj::Exception&& exception) override;

  const HttpHooks hooks_;
  const HttpHeaderNames& names_;
  const Replies& replies_;
  HttpMetrics& metrics_;
  const History& history_;
  LiveFeeds& feeds_;
  Watchers watchers_;
  const HostNames hosts_;
  std::map<std::string, Place, std::less<>> places_;
  kj::TaskSet actions_{*this};
};

}  // namespace psd

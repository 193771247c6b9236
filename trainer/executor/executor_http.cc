#include "trainer/executor/executor_http.h"

#include <string_view>
#include <utility>

#include <spdlog/spdlog.h>

#include "common/config/json_file.h"
#include "common/http/metric_writer.h"
#include "common/log/log_line.h"
#include "trainer/executor/executor_exposition.h"

namespace psd {

ExecutorHttp::ExecutorHttp(kj::AsyncIoContext& io, const Executor& executor, const ExecutorServer& server,
                           std::shared_ptr<const TlsContext> tls)
    : executor_(executor),
      server_(server),
      hosts_(executor.config().http.listen),
      names_(builder_),
      table_(builder_.build()),
      replies_(names_, io.provider->getTimer(), executor.config().http.timeout.count() * kj::MILLISECONDS,
               [] { spdlog::debug("http: a peer took longer than http.timeout_ms"); }),
      listener_(io, *table_, *this, replies_, optionsOf(executor.config(), std::move(tls))) {}

HttpListenerOptions ExecutorHttp::optionsOf(const ExecutorConfig& config,
                                            std::shared_ptr<const TlsContext> tls) {
  return {.listen = config.http.listen,
          .connections = config.http.connections,
          .timeout = config.http.timeout,
          .tls = [tls = std::move(tls)] { return tls; },
          .handshakeRefused =
              [](const std::string& why) {
                logLine(spdlog::level::warn, {.event = "handshake_refused", .limited = true},
                        "http: refused a peer: {}", why);
              },
          .counted = [](uint64_t) {},
          .refused =
              [most = config.http.connections] {
                logLine(spdlog::level::warn, {.event = "connection_refused", .limited = true},
                        "http: refused a peer: `http.connections` ({}) are open", most);
              }};
}

kj::Promise<void> ExecutorHttp::request(const HttpPeer& peer, kj::HttpMethod method, kj::StringPtr url,
                                        const kj::HttpHeaders& headers, kj::AsyncInputStream&,
                                        Response& response) {
  // Over TLS the certificate has already identified this host to the caller.
  if (!peer.encrypted && !hosts_.knows(headers)) {
    return replies_.text(
        response, 421, "Misdirected Request",
        "Host: names no address that this executor listens on, neither localhost nor an IP address");
  }
  const std::string_view whole(url.begin(), url.size());
  const std::string_view path = whole.substr(0, whole.find('?'));
  const bool known =
      path == "/healthz" || path == "/readyz" || path == "/metrics" || path == "/api/status.json";
  if (!known) return replies_.text(response, 404, "Not Found", "nothing is here");
  if (method != kj::HttpMethod::GET && method != kj::HttpMethod::HEAD) {
    return replies_.send(response, {.code = 405, .reason = "Method Not Allowed", .allow = "GET, HEAD"});
  }
  if (path == "/healthz") return replies_.text(response, 200, "OK", "ok");
  if (path == "/readyz") return ready(response);
  const ExecutorStatus status = executor_.status();
  const bool metrics = path == "/metrics";
  auto content = metrics ? exposition(status) : jsonText(statusJson(status)) + "\n";
  return replies_.send(response, {.type = metrics ? MetricWriter::kContentType : "application/json",
                                  .content = std::make_shared<const std::string>(std::move(content))});
}

kj::Promise<void> ExecutorHttp::ready(Response& response) const {
  const Status room = server_.checkCapacity();
  const std::string full = room.ok() ? executor_.status().full : room.message();
  if (full.empty()) return replies_.text(response, 200, "OK", "ready");
  return replies_.text(response, 503, "Service Unavailable", full);
}

}  // namespace psd

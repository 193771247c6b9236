#include "server/http/http_side.h"

#include <utility>

#include <spdlog/spdlog.h>

#include "common/types/unix_time.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

constexpr auto kSampleInterval = 1 * kj::SECONDS;

HttpListenerOptions listenerOptions(const HttpConfig& config, const HttpHooks& hooks, HttpMetrics& metrics) {
  return {.listen = config.listen,
          .connections = config.connections,
          .timeout = std::chrono::milliseconds(config.timeoutMs),
          .tls = hooks.tls,
          .handshakeRefused = hooks.handshakeRefused,
          .counted = [&metrics](uint64_t open) { metrics.connections.set(open); },
          .refused = [&metrics] { metrics.connectionsRefused.add(); }};
}

}  // namespace

HttpSide::HttpSide(kj::AsyncIoContext& io, const HttpConfig& config, HttpHooks hooks)
    : timer_(io.provider->getTimer()),
      status_(hooks.status),
      events_(hooks.events),
      daemons_(hooks.daemons),
      feeds_(hooks.reserve),
      names_(builder_),
      table_(builder_.build()),
      replies_(names_, timer_, config.timeoutMs * kj::MILLISECONDS, [this] { metrics_.timeouts.add(); }),
      site_(hooks, config, names_, replies_, metrics_, history_, feeds_),
      listener_(io, *table_, site_, replies_, listenerOptions(config, hooks, metrics_)),
      tasks_(*this) {}

HttpSide::~HttpSide() noexcept(false) = default;

Status HttpSide::start() {
  PSD_RETURN_IF_ERROR(listener_.start());
  sampleStatus();
  tasks_.add(keepSampling());
  return {};
}

kj::Promise<void> HttpSide::keepSampling() {
  return timer_.afterDelay(kSampleInterval).then([this] {
    sampleStatus();
    return keepSampling();
  });
}

void HttpSide::sampleStatus() {
  const DaemonStatus status = status_();
  history_.add(unixTimeNow(), status);
  const bool admins = feeds_.ofAdmins.watchers > 0, readers = feeds_.ofReaders.watchers > 0;
  nlohmann::ordered_json document, shown;
  if (admins || readers) document = documentOf(status);
  if (readers) shown = document;
  if (admins) document.update(statusJson(events_()));
  feeds_.ofReaders.tick(std::move(shown));
  feeds_.ofAdmins.tick(admins ? std::move(document) : nlohmann::ordered_json());
}

nlohmann::ordered_json HttpSide::documentOf(const DaemonStatus& status) const {
  nlohmann::ordered_json document;
  document["time"] = unixTimeNow();
  document["status"] = statusJson(status);
  if (daemons_) document.update(statusJson(daemons_(status)));
  if (const auto& point = history_.newest())
    document["point"] = nlohmann::ordered_json::parse(jsonOfPoint(*point));
  return document;
}

void HttpSide::taskFailed(kj::Exception&& exception) {
  spdlog::warn("http: status sampling has stopped: {}", exception.getDescription().cStr());
}

}  // namespace psd

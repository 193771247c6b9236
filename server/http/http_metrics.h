#pragma once

#include "server/metrics/registry.h"

namespace psd {

/// Metrics of the HTTP side itself; exported only at /metrics. Thread-safe.
struct HttpMetrics : MetricRegistry {
  Metric<Counter> requests{*this, {"http_requests", Unit::none, "requests over HTTP"}};
  Metric<Counter> connectionsRefused{
      *this, {"http_connections_refused", Unit::none, "connections refused because of `http.connections`"}};
  Metric<Counter> timeouts{*this,
                           {"http_timeouts", Unit::none, "requests over HTTP that `http.timeout_ms` ended"}};
  Metric<Gauge> connections{*this, {"http_connections", Unit::none, "open HTTP connections"}};
  Metric<Gauge> watchers{*this, {"http_watchers", Unit::none, "open event streams of pages and programs"}};
};

}  // namespace psd

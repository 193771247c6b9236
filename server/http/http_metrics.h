#pragma once

#include "server/metrics/registry.h"

namespace psd {

/// What the HTTP side counts of itself; shown at /metrics alone. Thread-safe.
struct HttpMetrics : MetricRegistry {
  Metric<Counter> requests{*this, {"http_requests", Unit::none, "requests over HTTP"}};
  Metric<Counter> connectionsRefused{
      *this, {"http_connections_refused", Unit::none, "connections over `http.connections`"}};
  Metric<Counter> timeouts{*this,
                           {"http_timeouts", Unit::none, "requests over HTTP that `http.timeout_ms` ended"}};
  Metric<Gauge> connections{*this, {"http_connections", Unit::none, "connections over HTTP now"}};
  Metric<Gauge> watchers{*this,
                         {"http_watchers", Unit::none, "pages and programs that follow the events now"}};
};

}  // namespace psd

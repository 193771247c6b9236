#pragma once

#include <string>

#include "server/http/http_metrics.h"
#include "server/status/daemon_row.h"
#include "server/status/daemon_status.h"

namespace psd {

/// A daemon's status and metrics in Prometheus text exposition format 0.0.4. Every metric has its HELP and
/// TYPE even if it has no sample. `all`: the daemons that serve the model or stand by, including this one;
/// empty if it is alone.
std::string exposition(const DaemonStatus& status, const HttpMetrics& http, const DaemonRows& all);

}  // namespace psd

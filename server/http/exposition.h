#pragma once

#include <string>

#include "server/http/http_metrics.h"
#include "server/status/daemon_status.h"

namespace psd {

/// A daemon's status and metrics in Prometheus' text exposition format 0.0.4. Every metric has its HELP and
/// TYPE, also where it has no sample now.
std::string exposition(const DaemonStatus& status, const HttpMetrics& http);

}  // namespace psd

#pragma once

#include "common/http/metric_writer.h"

namespace psd {

/// Writes Prometheus' standard metrics of a process, for this process.
void writeProcessMetrics(MetricWriter& out);

}  // namespace psd

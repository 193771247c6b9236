#pragma once

#include <cstdint>

#include "common/http/metric_writer.h"

namespace psd {

/// Writes Prometheus' standard metrics of a process, for this process. `openDescriptors`: as counted by
/// openDescriptors().
void writeProcessMetrics(MetricWriter& out, uint64_t openDescriptors);

}  // namespace psd

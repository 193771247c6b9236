#include "server/metrics/metric_values.h"

namespace psd {

const DaemonCounters& daemonMetrics() {
  static const DaemonCounters metrics;
  return metrics;
}

}  // namespace psd

#include "server/metrics/metric_values.h"

namespace psd {

const DaemonMetrics& daemonMetrics() {
  static const DaemonMetrics metrics;
  return metrics;
}

}  // namespace psd

#pragma once

#include <vector>

#include "server/metrics/counters.h"

namespace psd {

/// The metrics that a daemon has. Nothing is counted in this object.
const DaemonMetrics& daemonMetrics();

/// Snapshot of a daemon's metrics of one kind, in the order of their declaration. A value type.
template <class Kind>
class MetricValues {
 public:
  using Value = typename Kind::Value;

  /// All values are zero.
  MetricValues() : MetricValues(daemonMetrics()) {}
  explicit MetricValues(const DaemonMetrics& counters) {
    for (const Metric<Kind>* metric : counters.all<Kind>()) values_.push_back(metric->value());
  }

  /// By the metric of any DaemonMetrics, such as daemonMetrics().gradients.
  Value& operator[](const Metric<Kind>& metric) { return values_[metric.index()]; }
  const Value& operator[](const Metric<Kind>& metric) const { return values_[metric.index()]; }

  static void fields(auto& visit, auto& self) {
    for (const Metric<Kind>* metric : daemonMetrics().all<Kind>()) visit(metric->info().name, self[*metric]);
  }

 private:
  std::vector<Value> values_;
};

}  // namespace psd

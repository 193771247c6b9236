#pragma once

#include <string_view>
#include <tuple>
#include <vector>

#include "server/metrics/counter.h"
#include "server/metrics/histogram.h"

namespace psd {

/// The unit of a metric, which is also the suffix of its name, if there is one.
enum class Unit { none, bytes, seconds };

/// Description of a metric. The texts outlive it.
struct MetricInfo {
  std::string_view name;  ///< in the status document
  Unit unit = Unit::none;
  std::string_view help;   ///< human-readable; repeated in docs/reference/status.md
  bool isProblem = false;  ///< a count that indicates a problem if it is not 0
};

class MetricRegistry;

/// A Counter, Gauge or Histogram with its description, in a registry. As thread-safe as its kind.
template <class Kind>
class Metric : public Kind {
 public:
  /// `bounds`: only for a Histogram.
  template <class... Bounds>
  Metric(MetricRegistry& registry, MetricInfo info, const Bounds&... bounds);
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  const MetricInfo& info() const { return info_; }
  /// Index among the registry's metrics of the same kind.
  size_t index() const { return index_; }

 private:
  const MetricInfo info_;
  const size_t index_;
};

/// The metrics of an object in the order of their declaration: the object derives from the registry, and its
/// members register themselves. Immutable after construction, and therefore thread-safe.
class MetricRegistry {
 public:
  MetricRegistry() = default;
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  template <class Kind>
  using List = std::vector<const Metric<Kind>*>;

  /// The metrics of one kind, Counter, Gauge or Histogram, in the order of their declaration.
  template <class Kind>
  const List<Kind>& all() const {
    return std::get<List<Kind>>(lists_);
  }

 private:
  template <class Kind>
  friend class Metric;

  template <class Kind>
  size_t registerMetric(const Metric<Kind>& metric) {
    auto& list = std::get<List<Kind>>(lists_);
    list.push_back(&metric);
    return list.size() - 1;
  }

  std::tuple<List<Counter>, List<Gauge>, List<Histogram>> lists_;
};

template <class Kind>
template <class... Bounds>
Metric<Kind>::Metric(MetricRegistry& registry, MetricInfo info, const Bounds&... bounds)
    : Kind(bounds...), info_(info), index_(registry.registerMetric(*this)) {}

}  // namespace psd

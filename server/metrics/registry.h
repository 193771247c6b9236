#pragma once

#include <string_view>
#include <tuple>
#include <vector>

#include "server/metrics/counter.h"
#include "server/metrics/histogram.h"

namespace psd {

/// What a metric counts in. A name ends with the unit, where there is one.
enum class Unit { none, bytes, seconds };

/// What is to be known of a metric beside its value. The texts outlive it.
struct MetricInfo {
  std::string_view name;  ///< in the status document
  Unit unit = Unit::none;
  std::string_view help;   ///< what it counts, for people; docs/operations.md shows it
  bool isTrouble = false;  ///< a count that people are told of where it is not 0
};

class MetricRegistry;

/// A Counter, Gauge or Histogram with its description, in a registry. As thread-safe as its kind.
template <class Kind>
class Metric : public Kind {
 public:
  /// `bounds`: of a Histogram.
  template <class... Bounds>
  Metric(MetricRegistry& registry, MetricInfo info, const Bounds&... bounds);
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  const MetricInfo& info() const { return info_; }
  /// Among those of its kind in the registry.
  size_t index() const { return index_; }

 private:
  const MetricInfo info_;
  const size_t index_;
};

/// Which metrics an object has, in the order in which it declares them: it derives from the registry, and its
/// members enter themselves. Immutable from then on, and thus thread-safe.
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
  size_t enter(const Metric<Kind>& metric) {
    auto& list = std::get<List<Kind>>(lists_);
    list.push_back(&metric);
    return list.size() - 1;
  }

  std::tuple<List<Counter>, List<Gauge>, List<Histogram>> lists_;
};

template <class Kind>
template <class... Bounds>
Metric<Kind>::Metric(MetricRegistry& registry, MetricInfo info, const Bounds&... bounds)
    : Kind(bounds...), info_(info), index_(registry.enter(*this)) {}

}  // namespace psd

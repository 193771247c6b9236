#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/types/ids.h"
#include "server/store/rows/admission_filter.h"
#include "server/store/rows/row_rules.h"

namespace psd {

/// The rules of one table in one row shard, and their state. setRules() and sweeps() are for any thread, the
/// rest is for the writer.
class RowGate {
 public:
  /// `seed` is the table's, `range` the shard's.
  RowGate(uint64_t seed, HashRange range) : seed_(seed), range_(range) {}

  /// Sets the rules that the writer's next adoptRules() adopts.
  void setRules(const RowRules& rules);
  /// Adopts the newest rules. Returns whether they changed.
  bool adoptRules();
  const RowRules& rules() const { return rules_; }
  /// Whether updates look for rows due for eviction.
  bool sweeps() const { return sweeps_.load(std::memory_order_relaxed); }

  /// Whether new rows require admission.
  bool requiresAdmission() const { return filterTerms_ || rules_.admit.probability < 1; }
  /// The terms of the filter that these rules require; empty if they do not count.
  const std::optional<AdmissionFilter::Terms>& filterTerms() const { return filterTerms_; }
  /// Whether update `number`, the first since the last count, creates the missing row. Pure.
  bool admits(uint64_t id, uint64_t number) const;
  /// Counts an update of a missing row in a filter with these terms; a filter with other terms is discarded.
  void count(uint64_t id, const AdmissionFilter::Terms& terms);
  /// The filter; null if nothing was counted. Only count() and filterOf() change it, never a change of rules,
  /// so that all daemons that replay a log have the same filter.
  const AdmissionFilter* filter() const { return filter_ ? &*filter_ : nullptr; }
  /// Memory of the filter.
  uint64_t bytes() const { return filter_ ? filter_->bytes() : 0; }
  /// Additional memory that the filter needs once it counts under the current rules.
  uint64_t bytesToCount() const;
  /// The filter with these terms; replaces a filter with others.
  AdmissionFilter& filterOf(const AdmissionFilter::Terms& terms);

 private:
  const uint64_t seed_;
  const HashRange range_;
  RowRules rules_;
  std::optional<AdmissionFilter::Terms> filterTerms_;
  std::optional<AdmissionFilter> filter_;
  uint64_t adopted_ = 0;

  std::mutex mutex_;  // guards next_
  RowRules next_;
  std::atomic<uint64_t> newest_{0};
  std::atomic<bool> sweeps_{false};
};

}  // namespace psd

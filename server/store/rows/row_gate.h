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

/// The rules of one table in one row shard, and what they have to remember. setRules() and sweeps() are for
/// any thread, all else is the writer's.
class RowGate {
 public:
  /// `seed`: of the table. `range`: of the shard.
  RowGate(uint64_t seed, HashRange range) : seed_(seed), range_(range) {}

  /// The rules that the writer's next follow() goes over to.
  void setRules(const RowRules& rules);
  /// Takes over the newest rules. Whether they are others than before.
  bool follow();
  const RowRules& rules() const { return rules_; }
  /// Whether updates look for rows that are due.
  bool sweeps() const { return sweeps_.load(std::memory_order_relaxed); }

  /// Whether rows have to be admitted at all.
  bool selects() const { return counting_ || rules_.admit.probability < 1; }
  /// The terms of the filter that counts under these rules; nothing: the rules count nothing.
  const std::optional<AdmissionFilter::Terms>& counting() const { return counting_; }
  /// Whether update `number`, the first after what was counted, makes the row that is not there. Pure.
  bool admits(uint64_t id, uint64_t number) const;
  /// Counts an update of a row that is not there, for a filter with these terms: one with others is
  /// forgotten.
  void count(uint64_t id, const AdmissionFilter::Terms& terms);
  /// The filter of what was counted. Only count() and filterOf() change it, never a change of rules, so that
  /// every daemon that repeats a log has the same one. Null: nothing was counted.
  const AdmissionFilter* filter() const { return filter_ ? &*filter_ : nullptr; }
  /// Memory that the filter takes.
  uint64_t bytes() const { return filter_ ? filter_->bytes() : 0; }
  /// Memory that it takes more once something is counted under the rules.
  uint64_t bytesToCount() const;
  /// A filter with these terms, the one that is there if it has them.
  AdmissionFilter& filterOf(const AdmissionFilter::Terms& terms);

 private:
  const uint64_t seed_;
  const HashRange range_;
  RowRules rules_;
  std::optional<AdmissionFilter::Terms> counting_;
  std::optional<AdmissionFilter> filter_;
  uint64_t followed_ = 0;

  std::mutex mutex_;  // guards next_
  RowRules next_;
  std::atomic<uint64_t> newest_{0};
  std::atomic<bool> sweeps_{false};
};

}  // namespace psd

#include "server/store/rows/row_gate.h"

#include <algorithm>
#include <cmath>

namespace psd {

void RowGate::setRules(const RowRules& rules) {
  const std::lock_guard lock(mutex_);
  next_ = rules;
  sweeps_ = rules.evict.pass() > 0;
  newest_.fetch_add(1, std::memory_order_release);
}

bool RowGate::adoptRules() {
  const uint64_t newest = newest_.load(std::memory_order_acquire);
  if (newest == adopted_) return false;
  adopted_ = newest;
  const std::lock_guard lock(mutex_);
  rules_ = next_;
  filterTerms_.reset();
  if (rules_.admit.counts())
    filterTerms_ = AdmissionFilter::Terms::of(rules_.admit.pushes, rules_.admit.counters);
  return true;
}

bool RowGate::admits(uint64_t id, uint64_t number) const {
  if (filterTerms_) {
    const bool knows = filter_ && filter_->terms() == *filterTerms_;
    const uint32_t before = knows ? filter_->count(rowHash(id)) : 0;
    if (before + 1 < filterTerms_->pushes) return false;
  }
  if (rules_.admit.probability >= 1) return true;
  const uint64_t drawn = splitMix(splitMix(seed_ ^ rowHash(id)) + number);
  return std::ldexp(static_cast<double>(drawn >> 11), -53) < rules_.admit.probability;
}

uint64_t RowGate::bytesToCount() const {
  if (!filterTerms_ || (filter_ && filter_->terms() == *filterTerms_)) return 0;
  const uint64_t then = AdmissionFilter::bytesOf(*filterTerms_, range_);
  return then - std::min(then, bytes());
}

void RowGate::count(uint64_t id, const AdmissionFilter::Terms& terms) { filterOf(terms).add(rowHash(id)); }

AdmissionFilter& RowGate::filterOf(const AdmissionFilter::Terms& terms) {
  if (!filter_ || filter_->terms() != terms) filter_.emplace(terms, range_);
  return *filter_;
}

}  // namespace psd

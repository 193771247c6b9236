#include "server/metrics/histogram.h"

#include <algorithm>

namespace psd {

void Histogram::record(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
  double most = most_.load(std::memory_order_relaxed);
  while (value > most && !most_.compare_exchange_weak(most, value, std::memory_order_relaxed)) {
  }
}

HistogramValue Histogram::value() const {
  HistogramValue out;
  for (size_t i = 0; i <= bounds_.size(); i++) {
    const uint64_t count = counts_[i].load(std::memory_order_relaxed);
    out.count += count;
    out.buckets.push_back({i < bounds_.size() ? std::optional(bounds_[i]) : std::nullopt, count});
  }
  out.sum = sum_.load(std::memory_order_relaxed);
  out.most = most_.load(std::memory_order_relaxed);
  return out;
}

HistogramValue::Place HistogramValue::placeOf(double share) const {
  double total = 0;
  for (const Bucket& bucket : buckets) total += static_cast<double>(bucket.count);
  const double rank = share * total;
  double before = 0, above = 0;
  for (const Bucket& bucket : buckets) {
    const auto here = static_cast<double>(bucket.count);
    const double atMost = std::min(bucket.atMost.value_or(most), most);
    if (here > 0 && before + here >= rank) return {std::min(above, atMost), atMost, (rank - before) / here};
    before += here;
    above = bucket.atMost.value_or(above);
  }
  return {};
}

double HistogramValue::quantile(double share) const {
  const Place place = placeOf(share);
  return place.above + place.part * (place.atMost - place.above);
}

double HistogramValue::bound(double share) const { return placeOf(share).atMost; }

}  // namespace psd

#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// The elementwise mean without the β largest and β smallest values (Yin, Chen, Ramchandran, Bartlett 2018);
/// 2β < n. All contributions count equally, regardless of their samples. Tolerates β arbitrary contributions.
class TrimmedMean final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ConfigReader options);
  explicit TrimmedMean(uint32_t trim) : trim_(trim) {}

  std::string_view name() const override { return "trimmed_mean"; }
  uint32_t contributionsMin() const override { return 2 * trim_ + 1; }
  Combination combine(std::span<const double> weights, const SquaredDistances&) const override;

 private:
  const uint32_t trim_;
};

}  // namespace psd

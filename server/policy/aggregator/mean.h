#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// The mean weighted by samples, or as the policy says: K contributions of b examples equal one gradient of K
/// · b. One contribution that is wrong without bounds makes the mean wrong without bounds.
class Mean final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ObjectReader& options);

  std::string_view name() const override { return "mean"; }
  bool compares() const override { return false; }
  bool weighs() const override { return true; }
  Combination combine(std::span<const double> weights, const SquaredDistances&) const override;
};

}  // namespace psd

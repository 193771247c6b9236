#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// The mean weighted by samples, or by the policy's RoundWeights: K contributions of b samples each equal one
/// gradient of K · b samples. Not robust: a single unbounded contribution makes the mean unbounded.
class Mean final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ConfigReader options);

  std::string_view name() const override { return "mean"; }
  bool compares() const override { return false; }
  bool weighs() const override { return true; }
  Combination combine(std::span<const double> weights, const SquaredDistances&) const override;
};

}  // namespace psd

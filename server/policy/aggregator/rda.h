#pragma once

#include <string>
#include <vector>

#include "server/policy/aggregator/mean.h"

namespace psd {

/// Radial-directional averaging: for each tensor, the mean length of the contributions in the mean of their
/// directions, (Σ w‖Δ‖ / Σ w) · φ(Σ w φ(Δ)) with φ(x) = x / ‖x‖ and φ(0) = 0. The plain mean of contributions
/// that differ in direction is shorter than they are, increasingly with their number; RDA preserves the
/// length. If the directions cancel, and for tensors that match a glob of `direct`, the result is the
/// weighted mean.
class Rda final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ConfigReader options);
  explicit Rda(std::vector<std::string> direct) : direct_(std::move(direct)) {}

  std::string_view name() const override { return "rda"; }
  bool weighs() const override { return true; }
  bool byTensor() const override { return true; }
  bool needsProducts(const std::string& tensor) const override;
  std::span<const std::string> globs() const override { return direct_; }
  Combination combine(std::span<const double> weights, const SquaredDistances& distances) const override {
    return mean_.combine(weights, distances);
  }
  std::vector<float> weigh(const std::string& tensor, std::span<const double> weights,
                           const InnerProducts& products) const override;

 private:
  const Mean mean_;
  const std::vector<std::string> direct_;
};

}  // namespace psd

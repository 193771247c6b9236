#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// Krum (Blanchard, El Mhamdi, Guerraoui, Stainer 2017): selects the contribution with the smallest sum of
/// squared distances to its n − f − 2 nearest neighbors. Tolerates f = `byzantine` arbitrary contributions, n
/// ≥ 2f + 3.
class Krum final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ConfigReader options);
  explicit Krum(uint32_t byzantine) : byzantine_(byzantine) {}

  std::string_view name() const override { return "krum"; }
  uint32_t contributionsMin() const override { return 2 * byzantine_ + 3; }
  bool needsDistances() const override { return true; }
  Combination combine(std::span<const double> weights, const SquaredDistances& distances) const override;

 private:
  const uint32_t byzantine_;
};

}  // namespace psd

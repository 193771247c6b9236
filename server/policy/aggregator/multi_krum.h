#pragma once

#include "server/policy/aggregator/aggregator.h"

namespace psd {

/// Multi-Krum (Blanchard, El Mhamdi, Guerraoui, Stainer 2017): the mean of the m contributions with the best
/// Krum scores. m = `selected`, at most n − f − 2; 0 means n − f − 2. Tolerates f = `byzantine` arbitrary
/// contributions, n ≥ 2f + 3.
class MultiKrum final : public Aggregator {
 public:
  static std::shared_ptr<const Aggregator> read(ConfigReader options);
  MultiKrum(uint32_t byzantine, uint32_t selected) : byzantine_(byzantine), selected_(selected) {}

  std::string_view name() const override { return "multi_krum"; }
  uint32_t contributionsMin() const override;
  bool needsDistances() const override { return true; }
  Combination combine(std::span<const double> weights, const SquaredDistances& distances) const override;

 private:
  const uint32_t byzantine_;
  const uint32_t selected_;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config_reader.h"
#include "server/store/combination.h"

namespace psd {

/// Decides how the contributions of a synchronous round are combined into one gradient. The elementwise work
/// is done by the storages, which implement two operations (Combination); an aggregator selects the operation
/// and its arguments. Immutable; thread-safe.
class Aggregator {
 public:
  virtual ~Aggregator() = default;

  virtual std::string_view name() const = 0;
  /// The minimum number of contributions for which the rule is defined and its guarantee holds; the quorum of
  /// a round must not be lower.
  virtual uint32_t contributionsMin() const { return 1; }
  /// Whether it compares contributions with one another. A device may limit the number of contributions
  /// compared (Backend::comparedGradientsMax()).
  virtual bool compares() const { return true; }
  /// Whether combine() requires the pairwise distances between contributions over the whole model.
  virtual bool needsDistances() const { return false; }
  /// Whether it uses the weights of contributions; otherwise all count equally.
  virtual bool weighs() const { return false; }
  /// Whether the weighted sum has separate weights for each tensor, from weigh() instead of combine().
  virtual bool byTensor() const { return false; }
  /// With byTensor(): whether weigh() requires the pairwise inner products of the contributions to this
  /// tensor.
  virtual bool needsProducts(const std::string& /*tensor*/) const { return false; }
  /// Tensor-name globs from its options; each must match a tensor of the model.
  virtual std::span<const std::string> globs() const { return {}; }
  /// Returns how the contributions of a round are combined. `weights`: one non-negative weight per
  /// contribution (RoundWeights; by default its number of samples); there are at least contributionsMin()
  /// contributions. `distances`: the distances between these contributions if needsDistances(), else empty.
  virtual Combination combine(std::span<const double> weights, const SquaredDistances& distances) const = 0;
  /// With byTensor(): the weights of the contributions to one tensor. `products`: the inner products of these
  /// contributions if needsProducts(), else empty.
  virtual std::vector<float> weigh(const std::string& /*tensor*/, std::span<const double> weights,
                                   const InnerProducts& /*products*/) const {
    return combine(weights, {}).weights;
  }
};

/// Builds an aggregator from its options.
using ReadAggregator = std::shared_ptr<const Aggregator> (*)(ConfigReader options);

/// One entry of aggregator_list.h.
struct AggregatorEntry {
  std::string_view type;     ///< the value of aggregator.type
  std::string_view summary;  ///< human-readable
  ReadAggregator read;
};

/// Reads {"type": …, options…}; errors are recorded in the reader.
std::shared_ptr<const Aggregator> readAggregator(ConfigReader in);
/// What the value of an aggregator must be, for errors.
std::string aggregatorForms();
/// All aggregator types, one per line, for help texts.
std::string aggregatorHelp();

/// Upper limit of aggregator options that are a number of contributions.
inline constexpr uint32_t kContributionsMax = 10000;

}  // namespace psd

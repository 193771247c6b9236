#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/object_reader.h"
#include "server/store/combination.h"

namespace psd {

/// Decides how the contributions of a synchronous round become one gradient. Element by element that is the
/// work of the storages, which know two operations for it (Combination); an aggregator says which and with
/// what. Immutable; thread-safe.
class Aggregator {
 public:
  virtual ~Aggregator() = default;

  virtual std::string_view name() const = 0;
  /// The least number of contributions with which the rule has a meaning and its guarantee; no round's quorum
  /// may be below.
  virtual uint32_t contributionsMin() const { return 1; }
  /// Whether it sets the contributions against one another, of which a device may take a limited number
  /// (Backend::comparedMax()).
  virtual bool compares() const { return true; }
  /// Whether combine() must be told the distances between contributions over the whole model.
  virtual bool needsDistances() const { return false; }
  /// Whether it goes by the weights of contributions; else all count alike.
  virtual bool weighs() const { return false; }
  /// Whether the sum that contributions become has weights of its own in each tensor: those of weigh() in
  /// place of combine()'s.
  virtual bool byTensor() const { return false; }
  /// byTensor(): whether weigh() must be told the products of the contributions to this tensor.
  virtual bool needsProducts(const std::string& /*tensor*/) const { return false; }
  /// The globs among its options, each of which must match a tensor of the model.
  virtual std::span<const std::string> globs() const { return {}; }
  /// How the contributions of a round become one. `weights`: how much each contribution counts, not negative
  /// (RoundWeights, mostly the examples behind it); there are at least contributionsMin() contributions.
  /// `distances`: between these contributions where needsDistances(), else empty.
  virtual Combination combine(std::span<const double> weights, const SquaredDistances& distances) const = 0;
  /// byTensor(): the weights of one tensor's contributions. `products`: of these where needsProducts(), else
  /// empty.
  virtual std::vector<float> weigh(const std::string& /*tensor*/, std::span<const double> weights,
                                   const InnerProducts& /*products*/) const {
    return combine(weights, {}).weights;
  }
};

/// Builds an aggregator from its options.
using ReadAggregator = std::shared_ptr<const Aggregator> (*)(ObjectReader& options);

/// One line of aggregator_list.h.
struct AggregatorEntry {
  std::string_view type;     ///< the value of aggregator.type
  std::string_view summary;  ///< for people
  ReadAggregator read;
};

/// Reads {"type": …, options…}; problems go to the reader.
std::shared_ptr<const Aggregator> readAggregator(ObjectReader& in);
/// All types of aggregators, a line each, for help texts.
std::string aggregatorHelp();

/// The most gradients that an option of an aggregator may speak of.
inline constexpr uint32_t kContributionsMax = 10000;

}  // namespace psd

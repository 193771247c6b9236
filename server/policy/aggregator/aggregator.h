#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

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
  /// How the contributions of a round become one. `weights`: how much each contribution counts, not negative
  /// (RoundWeights, mostly the examples behind it); there are at least contributionsMin() contributions.
  /// `distances`: between these contributions where needsDistances(), else empty.
  virtual Combination combine(std::span<const double> weights, const SquaredDistances& distances) const = 0;
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

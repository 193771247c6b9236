#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <string_view>

#include "common/types/host_device.h"

namespace psd {

/// The numbers that an option may hold, both ends included unless said otherwise.
struct OptionRange {
  double min = 0;
  double max = 1e9;
  bool maxExclusive = false;
};

/// Range of the constant that keeps a denominator away from zero. Its float must not be zero.
inline constexpr OptionRange kEpsRange{1e-30, 1};
/// Decay rates of running averages.
inline constexpr OptionRange kDecayRange{0, 1, true};

/// A combination of options that makes no sense: the key to blame, and the reason for people.
struct OptionProblem {
  std::string_view key;
  std::string_view message;
};

/// One value that an optimizer keeps per weight, or per row.
struct Slot {
  std::string_view name;  ///< LibTorch's name of it; checkpoints use it
  float initialValue = 0.f;
  bool perRow = false;  ///< one per row of an embedding table in place of one per weight
};

/// What an optimizer must know about an update beside the gradient.
struct UpdateScalars {
  uint64_t number = 1;      ///< 1-based count of this shard's updates
  double learningRate = 0;  ///< after schedule and modifiers
  uint64_t before = 0;      ///< updates that another optimizer made, of which this one's state knows nothing
  /// What is applied is a difference of parameters: w ← w − g, past the optimizer, whose state stays.
  bool difference = false;

  /// 1-based count of the updates that the optimizer's state is made of: Adam's t.
  uint64_t t() const { return number - before; }
};

}  // namespace psd

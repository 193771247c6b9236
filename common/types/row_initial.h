#pragma once

#include <cstdint>
#include <span>

namespace psd {

/// What the rows of an embedding table are before their first update: a pure function of (seed, id), with
/// the same bits on every machine and in every process. A row that was never written needs no memory. A value
/// type.
struct RowInitial {
  enum class Kind : uint8_t {
    zero,
    uniform,  ///< −scale … scale
    normal,   ///< of mean 0 and deviation `scale`, within 4.9 deviations: a sum of eight uniform numbers
  };

  static constexpr double kScale = 0.01;  ///< where none is given

  Kind kind = Kind::uniform;
  float scale = static_cast<float>(kScale);  ///< finite, at least 0
  uint64_t seed = 1;                         ///< tables with different seeds have unrelated rows

  /// row = the initial values of row `id`. A shorter row is the beginning of a longer one. Takes some 0.5 ns
  /// an element.
  void fill(uint64_t id, std::span<float> row) const;

  bool operator==(const RowInitial&) const = default;
};

}  // namespace psd

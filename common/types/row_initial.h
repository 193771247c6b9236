#pragma once

#include <cstdint>
#include <span>

namespace psd {

/// The initial value of embedding rows: a pure function of (seed, id), bit-identical on every machine and in
/// every process. A row that was never written needs no memory. A value type.
struct RowInitial {
  enum class Kind : uint8_t {
    zero,
    uniform,  ///< −scale … scale
    normal,  ///< mean 0 and standard deviation `scale`, within 4.9 deviations: a sum of eight uniform numbers
  };

  static constexpr double kScale = 0.01;  ///< the default

  Kind kind = Kind::uniform;
  float scale = static_cast<float>(kScale);  ///< finite, at least 0
  uint64_t seed = 1;                         ///< tables with different seeds have unrelated rows

  /// Writes the initial values of row `id` to `row`. A shorter row is a prefix of a longer one. Takes about
  /// 0.5 ns per element.
  void fill(uint64_t id, std::span<float> row) const;

  bool operator==(const RowInitial&) const = default;
};

}  // namespace psd

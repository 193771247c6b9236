#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// A box of a tensor, as a rank of the publishers gives it. A value type.
struct VersionPart {
  std::string name;
  std::string dtype;                     ///< as in a .safetensors file
  std::vector<uint64_t> shape;           ///< of the tensor
  std::vector<uint64_t> offset, extent;  ///< of the box, as many as the shape has
  uint32_t checksum = 0;                 ///< CRC-32C of the box's bytes, row-major

  // Of a part that checkPart() accepts:
  uint64_t bytes() const;
  uint64_t tensorBytes() const;
  bool isSameBox(const VersionPart& other) const { return offset == other.offset && extent == other.extent; }
  /// Human-readable: "[0:4, 8:16]"; of a scalar "[]".
  std::string boxText() const;
  bool operator==(const VersionPart&) const = default;
};

/// Checks a part that a peer sent: its name, dtype and sizes. ErrorCode::invalidArgument names the tensor.
Status checkPart(const VersionPart& part);
inline constexpr size_t kPartDimsMax = 16;
inline constexpr uint64_t kPartTensorBytesMax = 1ull << 50;

/// The contiguous runs of a box in the row-major bytes of its tensor, all of one length. Immutable.
class BoxRuns {
 public:
  /// `part` is valid and not empty.
  explicit BoxRuns(const VersionPart& part);

  /// Calls `visit(place, at, bytes)` for bytes [from, from + count) of the box in pieces: `bytes` of them
  /// from `at` on, relative to `from`, lie at `place` in the tensor.
  template <class Visit>
  void visit(uint64_t from, uint64_t count, const Visit& visit) const {
    uint64_t run = from / runBytes_, skipped = from % runBytes_, at = 0;
    uint64_t left = leftInRow(run), place = placeOf(run);
    while (at < count) {
      const uint64_t bytes = std::min(runBytes_ - skipped, count - at);
      visit(place + skipped, at, bytes);
      at += bytes;
      skipped = 0;
      run++;
      place += stride_;
      if (--left > 0 || at == count) continue;
      left = leftInRow(run);
      place = placeOf(run);
    }
  }

 private:
  struct Outer {
    uint64_t extent, stride;  // of a dimension outside of the runs; the stride in bytes
  };
  uint64_t placeOf(uint64_t run) const;
  /// Number of runs, from this one on, that lie `stride_` apart.
  uint64_t leftInRow(uint64_t run) const {
    return outer_.empty() ? 1 : outer_.back().extent - run % outer_.back().extent;
  }

  std::vector<Outer> outer_;
  uint64_t begin_ = 0;  // place of the first run
  uint64_t runBytes_ = 0, stride_ = 0;
};

}  // namespace psd

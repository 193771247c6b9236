#pragma once

#include <cstdint>
#include <vector>

#include "trainer/client/transport/slices.h"

namespace psd {

/// Tracks which slices of an arena are complete as ranges are reported. Owned by one thread.
class Coverage {
 public:
  /// `slices`: in arena order and without gaps, as from cutIntoSlices().
  explicit Coverage(const std::vector<Slice>& slices);

  /// Records the elements [begin, begin + count), none of which was recorded before; returns the indexes of
  /// the slices that this completes.
  std::vector<size_t> add(uint64_t begin, uint64_t count);
  /// Elements not recorded yet.
  uint64_t missing() const { return missing_; }

 private:
  struct Part {
    uint64_t begin, end;  ///< in the arena
    uint64_t missing;
  };
  std::vector<Part> parts_;
  uint64_t missing_ = 0;
};

}  // namespace psd

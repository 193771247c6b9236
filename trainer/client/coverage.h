#pragma once

#include <cstdint>
#include <vector>

#include "trainer/client/transport/slices.h"

namespace psd {

/// Tells which slices of an arena are complete while its ranges are reported. Owned by one thread.
class Coverage {
 public:
  /// `slices` in arena order and without a gap, as cutIntoSlices() gives them.
  explicit Coverage(const std::vector<Slice>& slices);

  /// Notes the elements [begin, begin + count), none of which was noted before; gives the indexes of the
  /// slices that became complete by it.
  std::vector<size_t> add(uint64_t begin, uint64_t count);
  /// Elements not noted yet.
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

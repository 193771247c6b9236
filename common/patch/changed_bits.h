#pragma once

#include <cstddef>
#include <cstdint>

#include "common/patch/instruction_sets.h"

namespace psd {

/// Compares `count` elements of 1, 2, 4 or 8 bytes as bits: sets bit i of `changed`, in words of 64 of which
/// the last is padded with zeros, if element i differs.
void changedBits(const std::byte* before, const std::byte* after, uint64_t count, uint32_t elementBytes,
                 uint64_t* changed, InstructionSet set = bestInstructions());

}  // namespace psd

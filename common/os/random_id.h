#pragma once

#include <cstdint>

namespace psd {

/// A number that nobody else has, by all odds. Never 0, which stands for none.
uint64_t drawId();

}  // namespace psd

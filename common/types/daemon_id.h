#pragma once

#include "common/types/ids.h"

namespace psd {

/// One process of a daemon: a random number drawn at start, and drawn again when the daemon discards its
/// state. Not an address: a process that restarts at the same address has another id. Random, so that no
/// coordination is needed; collisions among 2⁶⁴ are not handled. 0 means none.
using DaemonId = StrongId<struct DaemonIdTag, uint64_t>;

}  // namespace psd

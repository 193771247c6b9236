#pragma once

#include "common/types/ids.h"

namespace psd {

/// One process of a daemon: a random number that it draws when it starts, and anew when it throws its state
/// away. Never an address: a process that was started again at the same place is another one. Random, so that
/// nobody has to deal the numbers out; two alike among 2⁶⁴ are not reckoned with. 0 names nobody.
using DaemonId = StrongId<struct DaemonIdTag, uint64_t>;

}  // namespace psd

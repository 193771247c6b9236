#pragma once

#include <memory>
#include <string>

#include "trainer/loop/collective.h"

namespace psd {

/// Groups of trainers by c10d's ProcessGroupGloo, which LibTorch brings: sums in host memory, over TCP.
/// `host`: by which name or address the other trainers reach this one; empty: they are on this machine. A
/// trainer that is asked where it is opens a store (c10d::TCPStore) at a port that the system chose; the
/// members of a group meet at that of the first. An Error (invalidArgument) names a host that is not this
/// machine. What it makes belongs to one thread.
Result<std::unique_ptr<CollectiveMaker>> makeGlooGroups(const std::string& host);

}  // namespace psd

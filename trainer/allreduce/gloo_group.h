#pragma once

#include <memory>
#include <string>

#include "trainer/loop/collective.h"

namespace psd {

/// Averaging groups on LibTorch's c10d ProcessGroupGloo: sums in host memory, over TCP. `host`: the host name
/// or address at which other trainers reach this one; empty: all trainers are on this machine.
/// CollectiveMaker::where() opens a rendezvous store (c10d::TCPStore) at a port chosen by the system; a group
/// uses the store of its first member. ErrorCode::invalidArgument if `host` is not this machine. The result
/// is owned by one thread.
Result<std::unique_ptr<CollectiveMaker>> makeGlooGroups(const std::string& host);

}  // namespace psd

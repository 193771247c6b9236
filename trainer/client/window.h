#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "trainer/client/slices.h"

namespace psd {

/// Calls `send` for every slice in order, with at most `window` unanswered at a time. After the first error
/// no further slice is sent; the promise resolves, with that error, once all that were sent are
/// answered. Everything happens on the calling event loop.
kj::Promise<Status> sendInWindow(const std::vector<Slice>& slices, uint32_t window,
                                 std::function<kj::Promise<Status>(const Slice&)> send);

}  // namespace psd

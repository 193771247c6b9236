#pragma once

#include <cstdint>

#include <kj/async.h>

#include "trainer/client/transport/row_slices.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// A way for rows of embedding tables to travel between this process and the daemon, slice by slice, from and
/// to the batch that they are of. Belongs to the connection's event loop, where its promises resolve: with
/// what the daemon said, or as the connection breaks.
class RowTransport {
 public:
  virtual ~RowTransport() = default;

  /// What people call it: "rpc" or "shm".
  virtual const char* name() const = 0;

  /// Pushes the gradients of one slice of `push`.rows, which may be null for a slice without rows. `push` and
  /// its batch outlive the promise.
  virtual kj::Promise<SlicePushed> push(const PushRequest& push, const RowSlice& slice) = 0;
  /// Fills in the values of the rows of one slice, which is not empty. `batch` outlives the promise.
  virtual kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) = 0;
};

}  // namespace psd

#pragma once

#include <cstdint>

#include <kj/async.h>

#include "trainer/client/transport/row_slices.h"
#include "trainer/client/transport/slice_transport.h"

namespace psd {

/// Transfers rows of embedding tables between a batch and the daemon, slice by slice. Belongs to the
/// connection's event loop, where its promises resolve, with the daemon's answer or when the connection
/// breaks.
class RowTransport {
 public:
  virtual ~RowTransport() = default;

  /// Human-readable: "rpc" or "shm".
  virtual const char* name() const = 0;

  /// Pushes the gradients of one slice of `push`.rows, which may be null for a slice without rows. `push` and
  /// its batch outlive the promise.
  virtual kj::Promise<SlicePushed> push(const PushRequest& push, const RowSlice& slice) = 0;
  /// Fills in the values of the rows of one non-empty slice. `batch` outlives the promise.
  virtual kj::Promise<Result<SlicePulled>> pull(uint64_t pull, const RowSlice& slice, RowBatch& batch) = 0;
};

}  // namespace psd

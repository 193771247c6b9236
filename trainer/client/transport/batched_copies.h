#pragma once

#include <cstddef>

#include <kj/async.h>

#include "common/status/status.h"
#include "trainer/client/transport/device_copier.h"

namespace psd {

/// Batches copies on a device's stream: one synchronization covers all copies that were started before the
/// event loop became idle. Each synchronization costs this process a time slice on the device. Belongs to
/// that event loop.
class BatchedCopies {
 public:
  /// `copier` outlives this object.
  explicit BatchedCopies(DeviceCopier& copier) : copier_(copier) {}
  ~BatchedCopies() noexcept { end(); }
  BatchedCopies(const BatchedCopies&) = delete;
  BatchedCopies& operator=(const BatchedCopies&) = delete;

  /// Copies from one address to another, each in host or device memory. Resolves when the copy is complete,
  /// in the order of the calls. Both arrays must stay valid until then, or until end().
  kj::Promise<Status> copy(void* to, const void* from, size_t bytes);
  /// Blocks until all started copies are complete.
  void end();

 private:
  DeviceCopier& copier_;
  kj::Maybe<kj::ForkedPromise<Status>> ending_;  // outcome of the newest batch, which may be complete
  bool open_ = false;                            // the batch accepts more copies
};

}  // namespace psd

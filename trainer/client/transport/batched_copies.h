#pragma once

#include <cstddef>

#include <kj/async.h>

#include "common/status/status.h"
#include "trainer/client/transport/device_copier.h"

namespace psd {

/// Copies by a device's copier that end together: one wait for all that were begun before the event loop had
/// nothing else to do. Each wait costs this process a turn at the device. Belongs to that event loop.
class BatchedCopies {
 public:
  /// `copier` outlives this object.
  explicit BatchedCopies(DeviceCopier& copier) : copier_(copier) {}
  ~BatchedCopies() noexcept { end(); }
  BatchedCopies(const BatchedCopies&) = delete;
  BatchedCopies& operator=(const BatchedCopies&) = delete;

  /// Copies from one address to another, each in memory of the host or of a device. Resolves when that is
  /// done, in the order of the calls. Both arrays stay until then, or until end().
  kj::Promise<Status> copy(void* to, const void* from, size_t bytes);
  /// Waits at once for what was begun.
  void end();

 private:
  DeviceCopier& copier_;
  kj::Maybe<kj::ForkedPromise<Status>> ending_;  // what begun copies come to; of a batch that may be over
  bool open_ = false;                            // a batch that may still grow
};

}  // namespace psd

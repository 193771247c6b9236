#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/types/range_set.h"
#include "server/loop/event_loop.h"
#include "server/store/gradient.h"

namespace psd {

/// Receives the model's initial values from the initializer, in slices. Belongs to an event loop; its
/// promises must not outlive the session that owns it.
class InitialValues {
 public:
  InitialValues(EventLoop& loop, std::shared_ptr<ServedModel> model);

  /// Writes one slice into the model. ErrorCode::badSlice if it lies in no shard or repeats values,
  /// ErrorCode::nonFinite. `values` must stay valid until it resolves.
  kj::Promise<Status> write(uint32_t shard, uint64_t offset, const Gradient& values);
  /// Resolves when every received slice is in the model or has failed; nothing if that is already so.
  kj::Maybe<kj::Promise<void>> whenWritten();
  /// Whether all values are in the model; call after whenWritten().
  Status complete() const;

 private:
  Status check(uint32_t shard, uint64_t offset, const Gradient& values);
  void written(const Status& status);

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  std::vector<RangeSet> arrived_;  // per shard; empty before the first slice
  uint64_t writing_ = 0;           // slices being written by a device
  std::optional<Error> failed_;    // first write error
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> waiters_;
};

}  // namespace psd

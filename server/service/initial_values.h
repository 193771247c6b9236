#pragma once

#include <optional>
#include <span>
#include <vector>

#include "common/types/range_set.h"
#include "server/loop/event_loop.h"

namespace psd {

/// The model's first values while one trainer brings them, slice by slice. Belongs to an event loop; promises
/// keep it no longer than the session that has it.
class InitialValues {
 public:
  InitialValues(EventLoop& loop, std::shared_ptr<ServedModel> model);

  /// Writes one slice into the model. ErrorCode::badSlice where it lies in no shard or came before,
  /// ErrorCode::nonFinite. `values` stay readable until it resolves.
  kj::Promise<Status> write(uint32_t shard, uint64_t offset, std::span<const float> values);
  /// Resolves when every slice that came is in the model, or failed; nothing: that is so already.
  kj::Maybe<kj::Promise<void>> whenWritten();
  /// Whether all values are in the model; after whenWritten().
  Status complete() const;

 private:
  Status check(uint32_t shard, uint64_t offset, std::span<const float> values);
  void written(const Status& status);

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  std::vector<RangeSet> arrived_;  // per shard; empty before the first slice
  uint64_t writing_ = 0;           // slices that a device is at work on
  std::optional<Error> failed_;    // why some are not in the model
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> waiters_;
};

}  // namespace psd

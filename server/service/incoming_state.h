#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/types/range_set.h"
#include "server/loop/event_loop.h"
#include "server/store/model_state.h"

namespace psd {

/// Receives the values and the optimizer state that a trainer restores, in slices, and holds them until they
/// are complete. One object of a model at a time holds any. Belongs to an event loop.
class IncomingState {
 public:
  IncomingState(EventLoop& loop, std::shared_ptr<ServedModel> model);
  ~IncomingState() { clear(); }
  IncomingState(const IncomingState&) = delete;
  IncomingState& operator=(const IncomingState&) = delete;

  /// Copies one slice of a shard's values (`state` empty) or of that state of its optimizer. The first slice
  /// of the values of shard 0 discards what came before; so does an error.
  Status write(uint32_t shard, std::string_view state, uint64_t offset, std::span<const float> values);
  /// Everything that was received, which must be complete, with `steps` by shard. Nothing is held afterwards.
  Result<ModelState> take(const std::vector<uint64_t>& steps);

 private:
  Status begin();
  void clear();
  /// The index in ModelState::OfShard::planes.
  Result<size_t> planeOf(uint32_t shard, std::string_view state) const;
  Status accept(uint32_t shard, std::string_view state, uint64_t offset, std::span<const float> values);
  Status checkComplete(const std::vector<uint64_t>& steps) const;

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  ModelState state_;                            // no shards: nothing was received
  std::vector<std::vector<RangeSet>> arrived_;  // by shard and plane
};

}  // namespace psd

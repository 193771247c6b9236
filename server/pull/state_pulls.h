#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/time.h>

#include "common/budget/byte_budget.h"
#include "server/loop/event_loop.h"
#include "server/policy/served_model.h"

namespace psd {

/// A slice of a shard's values or of one state of its optimizer, as a peer requests it.
struct StateRequest {
  uint64_t pull = 0;  ///< slices of a shard with the same number show one moment
  uint32_t shard = 0;
  std::string state;               ///< name of the state; empty: the values
  uint64_t offset = 0, count = 0;  ///< elements, from the start of the shard; `count` 0: no values
};

/// A slice as sent.
struct StateSlice {
  Version version;
  uint64_t steps = 0;               ///< updates in the optimizer's state
  std::vector<std::string> states;  ///< names of the optimizer's states
  std::span<const float> values;
  std::shared_ptr<const void> owner;  ///< keeps `values` valid
};

/// Answers one trainer's pulls of optimizer state, from a copy of one shard at a time, which counts in
/// limits.snapshot_bytes. Owned by one event loop; outlives its promises.
class StatePulls {
 public:
  StatePulls(EventLoop& loop, std::shared_ptr<ServedModel> model) : loop_(loop), model_(std::move(model)) {}

  /// Whether the slice may be pulled: it lies within its shard, and the optimizer has the state.
  Status check(const StateRequest& request) const;
  /// Reads the slice, after check().
  kj::Promise<Result<StateSlice>> pull(const StateRequest& request);
  /// Drops the copy of a pull that has been idle since `since`; such a pull must be restarted.
  void dropIdle(kj::TimePoint since);

 private:
  /// A copy of a shard, made under its lock.
  struct Copy {
    Version version;
    uint64_t steps = 0;
    std::vector<std::unique_ptr<float[]>> planes;  // the values, then the optimizer's slots in order
    ByteBudget::Lease room;
  };
  using Copied = Result<std::shared_ptr<const Copy>>;

  kj::Promise<Copied> copy(uint32_t shard);
  /// Copies what follows `offset` of `plane`; the shard's lock is held.
  kj::Promise<Copied> copyFrom(uint32_t shard, std::shared_ptr<Copy> copy, size_t plane, uint64_t offset);
  std::vector<std::string> namesOf(uint32_t shard) const;

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  uint64_t pull_ = 0;
  uint32_t shard_ = 0;
  kj::Maybe<kj::ForkedPromise<Copied>> copy_;  // of that shard, for that pull
  bool dropped_ = false;                       // by dropIdle()
  size_t unanswered_ = 0;
  kj::TimePoint asked_ = kj::origin<kj::TimePoint>();  // last request
};

}  // namespace psd

#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include <kj/async.h>
#include <kj/time.h>

#include "server/loop/event_loop.h"
#include "server/policy/policy_capabilities.h"
#include "server/policy/published_values.h"
#include "server/policy/served_model.h"
#include "server/pull/slice_encoder.h"

namespace psd {

/// A slice requested by a peer.
struct PullRequest {
  uint64_t pull = 0;  ///< number of the peer's pull that the slice belongs to; a new number starts a new pull
  uint32_t shard = 0;
  uint64_t offset = 0, count = 0;  ///< elements, from the start of the shard
};

/// A slice as sent.
struct PulledSlice {
  Version version;                    ///< lower bound on the shard's version
  std::span<const std::byte> bytes;   ///< float32, or encoded by the codec
  std::shared_ptr<const void> owner;  ///< keeps `bytes` valid
};

/// Rows requested by a peer.
struct RowPullRequest {
  uint32_t shard = 0;
  OwnedRowRuns rows;  ///< valid until the answer is complete
};

/// Rows as sent.
struct PulledRows {
  RowsAnswer answer;
  std::span<const std::byte> bytes;   ///< row after row, float32 or encoded by the codec
  std::shared_ptr<const void> owner;  ///< keeps `bytes` valid
};

/// Answers the pulls of one peer, trainer or reader, independent of protocol: checks each slice, reads it
/// through the policy, and keeps the policy's state for later slices of the same pull. Owned by one event
/// loop.
class PullService {
 public:
  /// `loop` outlives it. `trainer` and `counters` are empty for readers. `codec`: the one that pulls may
  /// request besides float32; null: none.
  PullService(EventLoop& loop, std::shared_ptr<ServedModel> model, std::optional<TrainerRef> trainer,
              std::shared_ptr<SessionCounters> counters, const Codec* codec, SliceEncoder encoder = {});

  /// Whether the peer is a reader instead of a trainer.
  bool isReader() const { return !trainer_; }
  /// The model's buffers.
  Buffers::Current buffers() const { return model_->store->buffers().get(); }
  /// The codec named by a request; null if `name` is empty. ErrorCode::invalidArgument for one that was not
  /// negotiated.
  Result<const Codec*> agreedCodec(std::string_view name) const;
  /// Whether the slice may be pulled now: it lies within its shard and on the grain, is not too large, and
  /// its pull has not expired (limits.pull_timeout_ms: ErrorCode::deadlineExceeded).
  Status check(const PullRequest& request) const;

  /// Reads the slice, after check(). The policy may delay it.
  kj::Promise<Result<PulledSlice>> pull(const PullRequest& request, const Codec* codec);
  /// Reads the slice, after check(), for a peer that pulls differences. The policy may delay it.
  /// ErrorCode::invalidArgument if the policy has no differences.
  kj::Promise<Result<PublishedSlice>> pullDelta(const PullRequest& request, const HeldValues& held);
  /// Copies the slice's values to memory of the shard's device, after check(); returns their version.
  kj::Promise<Result<Version>> pullTo(const PullRequest& request, std::span<float> place);

  /// Whether the rows may be pulled now: they belong to the shard and are not too many.
  Status check(const RowPullRequest& request) const;
  /// Size of the rows as float32, in bytes, after check().
  uint64_t valueBytes(const RowPullRequest& request) const;
  /// If the policy would make the rows wait for other trainers: resolves when they no longer have to.
  kj::Maybe<kj::Promise<Status>> waitToPull(const RowPullRequest& request);
  /// Reads the rows, after check(). The policy may delay them.
  kj::Promise<Result<PulledRows>> pullRows(RowPullRequest request, const Codec* codec);
  /// Writes the rows' values to `place`, which is exactly their size, after check(). The policy may delay
  /// them.
  kj::Promise<Result<RowsAnswer>> pullRowsTo(RowPullRequest request, std::span<float> place);

  /// Drops the snapshots of pulls that have been idle since `since`; such pulls must be restarted.
  void dropIdle(kj::TimePoint since);

 private:
  /// A pull of a shard. It stays under the policy that was current at its start.
  struct Reading : ShardPull {
    std::shared_ptr<UpdatePolicy> policy;
    kj::TimePoint asked = kj::origin<kj::TimePoint>();  ///< last request or answer
    size_t unanswered = 0;                              ///< slices in progress
    bool snapshotDropped = false;                       ///< its snapshot was dropped
  };

  /// Whether this model may be read now.
  Status mayRead() const;
  RowShard& rowShardOf(const RowPullRequest& request) const;
  /// Reads the rows' values into `out` through the policy.
  kj::Promise<Result<RowsAnswer>> readRows(RowPullRequest request, std::span<float> out);
  std::shared_ptr<Reading> reading(const PullRequest& request);
  /// Marks a slice of the pull as in progress until the returned handle, attached to its answer, is dropped.
  std::shared_ptr<const void> markInProgress(uint32_t shard, const std::shared_ptr<Reading>& reading);
  /// Counts the trainer as waiting until the returned handle is dropped.
  std::shared_ptr<const void> holdWaitCounter();
  /// Counts an answered slice.
  void count(uint64_t bytes, uint64_t valueBytes);
  /// The bytes to send: the view's own memory, or the codec's output.
  Result<SliceEncoder::Encoded> encoded(const ReadView& view, const Codec* codec);

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  const std::optional<TrainerRef> trainer_;
  const std::shared_ptr<SessionCounters> counters_;
  const Codec* const codec_;
  SliceEncoder encoder_;
  std::map<uint32_t, std::shared_ptr<Reading>> pulls_;  // newest pull of each shard
  std::set<uint32_t> holding_;                          // shards whose pull holds a snapshot
};

}  // namespace psd

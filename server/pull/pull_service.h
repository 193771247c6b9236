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
#include "server/policy/published_values.h"
#include "server/policy/served_model.h"
#include "server/pull/slice_encoder.h"

namespace psd {

/// A slice that a peer asks for.
struct PullRequest {
  uint64_t pull = 0;  ///< which of the peer's pulls it belongs to: a new number begins a new one
  uint32_t shard = 0;
  uint64_t offset = 0, count = 0;  ///< elements, from the shard's begin
};

/// The slice as it travels.
struct PulledSlice {
  Version version;                    ///< of the shard, at least
  std::span<const std::byte> bytes;   ///< float32, or what the codec made of it
  std::shared_ptr<const void> owner;  ///< keeps `bytes` readable
};

/// Rows that a peer asks for.
struct RowPullRequest {
  uint32_t shard = 0;
  OwnedRowRuns rows;  ///< the ids stay as they are until the answer is there
};

/// The rows as they travel.
struct PulledRows {
  RowsAnswer answer;
  std::span<const std::byte> bytes;   ///< row after row, float32 or what the codec made of them
  std::shared_ptr<const void> owner;  ///< keeps `bytes` readable
};

/// Answers the pulls of one peer, trainer or reader, whatever protocol it speaks: checks each slice, has the
/// policy read it, and keeps what the policy needs for the slices to come of the same pull. Belongs to one
/// event loop.
class PullService {
 public:
  /// `loop` outlives it. `trainer` and `counters` are empty for readers. `codec`: the one that pulls may ask
  /// for beside float32; null: none.
  PullService(EventLoop& loop, std::shared_ptr<ServedModel> model, std::optional<TrainerRef> trainer,
              std::shared_ptr<SessionCounters> counters, const Codec* codec);

  /// Whether it serves a reader, and no trainer.
  bool ofReader() const { return !trainer_; }
  /// The codec that a request names, empty: none, which gives null. ErrorCode::invalidArgument for one that
  /// was not agreed on.
  Result<const Codec*> agreedCodec(std::string_view name) const;
  /// Whether the slice may be pulled now: it lies in its shard and on the grain, is not too large, and the
  /// pull that it belongs to was not given up (limits.pull_timeout_ms: ErrorCode::deadlineExceeded).
  Status check(const PullRequest& request) const;

  /// The slice, after check(). The policy may let it wait.
  kj::Promise<Result<PulledSlice>> pull(const PullRequest& request, const Codec* codec);
  /// The slice, after check(), as a peer gets it that pulls differences. The policy may let it wait.
  /// ErrorCode::invalidArgument where the policy has none.
  kj::Promise<Result<PublishedSlice>> pullDelta(const PullRequest& request, const HeldValues& held);
  /// The slice's values into memory of the shard's device, after check(); gives their version.
  kj::Promise<Result<Version>> pullTo(const PullRequest& request, std::span<float> place);

  /// Whether the rows may be pulled now: they are of their shard, and not too many.
  Status check(const RowPullRequest& request) const;
  /// Bytes of the rows as float32, after check().
  uint64_t valueBytes(const RowPullRequest& request) const;
  /// Where the policy would let the rows wait for other trainers: resolves when it need not any more.
  kj::Maybe<kj::Promise<Status>> waitToPull(const RowPullRequest& request);
  /// The rows, after check(). The policy may let them wait.
  kj::Promise<Result<PulledRows>> pullRows(RowPullRequest request, const Codec* codec);
  /// The rows' values to `place`, which has room for just them, after check(). The policy may let them wait.
  kj::Promise<Result<RowsAnswer>> pullRowsTo(RowPullRequest request, std::span<float> place);

  /// Lets go of the copies of shards whose pulls have asked for nothing since then: those pulls are to begin
  /// anew.
  void letGoOfIdle(kj::TimePoint since);

 private:
  /// A pull of a shard. It goes on under the policy that it began with.
  struct Reading : ShardPull {
    std::shared_ptr<UpdatePolicy> policy;
    kj::TimePoint asked = kj::origin<kj::TimePoint>();  ///< for a slice, or answered, the last time
    size_t unanswered = 0;                              ///< slices
    bool letGo = false;                                 ///< of its snapshot
  };

  /// Whether this model may be read now.
  Status mayRead() const;
  RowShard& rowShardOf(const RowPullRequest& request) const;
  /// Has the policy write the rows' values to `out`.
  kj::Promise<Result<RowsAnswer>> readRows(RowPullRequest request, std::span<float> out);
  std::shared_ptr<Reading> reading(const PullRequest& request);
  /// A slice of the pull is asked for; what is returned goes with its answer.
  std::shared_ptr<const void> asking(uint32_t shard, const std::shared_ptr<Reading>& reading);
  /// Shows that the trainer waits, until what it gives goes.
  std::shared_ptr<const void> countWait();
  /// Counts a slice that was answered.
  void count(uint64_t bytes, uint64_t valueBytes);
  /// What travels: the view's own memory, or what the codec made of it.
  Result<SliceEncoder::Encoded> encoded(const ReadView& view, const Codec* codec);

  EventLoop& loop_;
  const std::shared_ptr<ServedModel> model_;
  const std::optional<TrainerRef> trainer_;
  const std::shared_ptr<SessionCounters> counters_;
  const Codec* const codec_;
  SliceEncoder encoder_;
  std::map<uint32_t, std::shared_ptr<Reading>> pulls_;  // the newest of each shard that was asked for
  std::set<uint32_t> holding_;                          // shards whose pull holds a snapshot
};

}  // namespace psd

#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include <kj/async.h>
#include <kj/timer.h>

#include "server/checkpoint/replicator.h"
#include "server/replica/follower_link.h"
#include "server/replica/replication_config.h"

namespace psd {

/// A feed's view of its follower, readable from other threads.
struct FeedState {
  std::atomic<uint64_t> heardMs{0};  ///< last answer, on the steady clock
  std::atomic<bool> hasImage{false};
};

/// A primary's stream to one follower: an image of the model, every record from then on, and heartbeats.
/// Owned by one event loop.
class ReplicaFeed final : private kj::TaskSet::ErrorHandler {
 public:
  /// Writes a checkpoint to the stream on a background thread; resolves with its path.
  using Copy = std::function<kj::Promise<Result<std::string>>(std::shared_ptr<ImageStream> to)>;

  ReplicaFeed(const ReplicationConfig& config, std::shared_ptr<Replicator> replicator,
              kj::Own<FollowerLink> link, kj::Timer& timer, std::shared_ptr<FeedState> state);
  ~ReplicaFeed();

  /// Feeds until the follower fails or close() is called; resolves with the reason. Call once.
  kj::Promise<Status> run(const Copy& copy);
  /// Ends run() with this reason.
  void close(const Status& why);
  /// Notify the follower.
  kj::Promise<Status> notifyDocumentChanged() { return link_->documentChanged(); }
  kj::Promise<Status> notifyRunEnded(const std::string& reason) { return link_->runEnded(reason); }

 private:
  static constexpr uint32_t kCallsMax = 4;  // in flight
  static constexpr uint64_t kChunkBytes = 1u << 20;

  kj::Promise<void> pumpImage(kj::Promise<Result<std::string>> path);
  kj::Promise<void> sendImage();
  kj::Promise<void> pumpRecords();
  kj::Promise<void> send(std::shared_ptr<Replicator::Batch> batch, size_t piece, size_t at);
  /// Drops the batches to which nothing refers any more, and keeps some of their memory for the next ones.
  void reuseSent();
  kj::Promise<void> keepBeating();
  /// Resolves once one more call may be in flight.
  kj::Promise<void> slot();
  void freeSlot();
  void heard();
  /// The follower holds all records below `next`; `bytes` more than before.
  void holds(uint64_t next, uint64_t bytes);
  void taskFailed(kj::Exception&& exception) override;

  const ReplicationConfig config_;
  const std::shared_ptr<Replicator> replicator_;
  kj::Own<FollowerLink> link_;
  kj::Timer& timer_;
  const std::shared_ptr<FeedState> state_;
  const std::shared_ptr<ImageStream> image_ = std::make_shared<ImageStream>(kChunkBytes);
  Replicator::Stream stream_ = 0;
  uint32_t underWay_ = 0;
  kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> slotWaiter_;
  std::deque<std::shared_ptr<Replicator::Batch>> sent_;  // in order; the link may still refer to them
  PendingRecords spare_;
  kj::Own<kj::PromiseFulfiller<Status>> ended_;
  kj::TaskSet tasks_;  // last: its tasks use all of the above
};

}  // namespace psd

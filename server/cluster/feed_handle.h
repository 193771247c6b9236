#pragma once

#include <memory>
#include <utility>

#include "server/loop/event_loop.h"
#include "server/replica/replica_feed.h"

namespace psd {

/// The control loop's handle to a feed that runs on another event loop. Thread-safe; may outlive the feed.
class FeedHandle : public std::enable_shared_from_this<FeedHandle> {
 public:
  FeedHandle(std::shared_ptr<EventLoop> loop, std::shared_ptr<FeedState> state)
      : loop_(std::move(loop)), state_(std::move(state)) {}

  const FeedState& state() const { return *state_; }
  const std::shared_ptr<FeedState>& sharedState() const { return state_; }
  /// On the feed's loop: sets the feed; null once it is destroyed.
  void set(ReplicaFeed* feed) { feed_ = feed; }

  /// Runs `work(feed)` on the feed's loop if the feed still exists; the promise carries no result.
  template <class Work>
  kj::Promise<void> post(Work work) {
    return loop_->request([self = shared_from_this(), work = std::move(work)]() mutable {
      if (self->feed_) work(*self->feed_);
    });
  }
  /// Runs `work(feed)` on the feed's loop and resolves with its result; ErrorCode::unavailable if the feed
  /// no longer exists.
  kj::Promise<Status> ask(std::function<kj::Promise<Status>(ReplicaFeed&)> work) {
    return loop_->request([self = shared_from_this(), work = std::move(work)]() -> kj::Promise<Status> {
      if (!self->feed_) return Status(ErrorCode::unavailable, "the standby is gone");
      return work(*self->feed_);
    });
  }

 private:
  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<FeedState> state_;
  ReplicaFeed* feed_ = nullptr;  // used on the loop only
};

}  // namespace psd

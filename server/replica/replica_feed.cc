#include "server/replica/replica_feed.h"

#include <algorithm>
#include <utility>

#include <kj/debug.h>

#include "server/metrics/steady_clock.h"

namespace psd {

ReplicaFeed::ReplicaFeed(const ReplicationConfig& config, std::shared_ptr<Replicator> replicator,
                         kj::Own<FollowerLink> link, kj::Timer& timer, std::shared_ptr<FeedState> state)
    : config_(config),
      replicator_(std::move(replicator)),
      link_(kj::mv(link)),
      timer_(timer),
      state_(std::move(state)),
      tasks_(*this) {}

ReplicaFeed::~ReplicaFeed() {
  image_->end();
  replicator_->close(stream_);
}

kj::Promise<Status> ReplicaFeed::run(const Copy& copy) {
  auto pair = kj::newPromiseAndFulfiller<Status>();
  ended_ = kj::mv(pair.fulfiller);
  heard();
  // Before the copy starts: whatever it lacks is sent as a record.
  stream_ = replicator_->open();
  tasks_.add(pumpImage(copy(image_)));
  tasks_.add(pumpRecords());
  tasks_.add(keepBeating());
  return kj::mv(pair.promise);
}

void ReplicaFeed::close(const Status& why) {
  image_->end();
  replicator_->close(stream_);
  ended_->fulfill(Status(why));
}

void ReplicaFeed::taskFailed(kj::Exception&& exception) {
  close({ErrorCode::unavailable, exception.getDescription().cStr()});
}

void ReplicaFeed::heard() { state_->heardMs = steadyMs(); }

kj::Promise<void> ReplicaFeed::slot() {
  if (underWay_ < kCallsMax) {
    underWay_++;
    return kj::READY_NOW;
  }
  auto waiter = kj::newPromiseAndFulfiller<void>();
  slotWaiter_ = kj::mv(waiter.fulfiller);
  return kj::mv(waiter.promise);
}

void ReplicaFeed::freeSlot() {
  KJ_IF_MAYBE (waiter, slotWaiter_) {
    auto next = kj::mv(*waiter);
    slotWaiter_ = nullptr;
    next->fulfill();
    return;
  }
  underWay_--;
}

kj::Promise<void> ReplicaFeed::pumpImage(kj::Promise<Result<std::string>> path) {
  auto copied = path.then([this](Result<std::string> made) {
                      image_->finish();
                      return made;
                    })
                    .eagerlyEvaluate(nullptr);
  return sendImage()
      .then([copied = kj::mv(copied)]() mutable { return kj::mv(copied); })
      .then([this](Result<std::string> made) -> kj::Promise<Status> {
        if (!made.ok()) return made.status();
        return link_->imageDone(*made);
      })
      .then([this](Status status) {
        if (!status.ok()) return close(status);
        heard();
        state_->hasImage = true;
      });
}

kj::Promise<void> ReplicaFeed::sendImage() {
  return image_->whenFilled().then([this]() -> kj::Promise<void> {
    auto part = image_->take();
    if (!part) return kj::READY_NOW;
    // One at a time: records are sent in between.
    return link_->image(*std::move(part)).then([this](Status status) -> kj::Promise<void> {
      if (!status.ok()) {
        close(status);
        return kj::READY_NOW;
      }
      heard();
      return sendImage();
    });
  });
}

kj::Promise<void> ReplicaFeed::pumpRecords() {
  return replicator_->whenFilled(stream_).then([this]() -> kj::Promise<void> {
    auto batch = replicator_->take(stream_, std::move(spare_));
    if (!batch) {
      close({ErrorCode::modelMismatch, "the model has been replaced"});
      return kj::READY_NOW;
    }
    sent_.push_back(std::make_shared<Replicator::Batch>(*std::move(batch)));
    return send(sent_.back(), 0, 0).then([this] { return pumpRecords(); });
  });
}

void ReplicaFeed::reuseSent() {
  while (!sent_.empty() && sent_.front().use_count() == 1) {
    spare_ = std::move(sent_.front()->records);
    spare_.clear(Replicator::kSpareBytesMax);
    sent_.pop_front();
  }
}

kj::Promise<void> ReplicaFeed::send(std::shared_ptr<Replicator::Batch> batch, size_t piece, size_t at) {
  auto& pieces = batch->records.pieces();
  if (piece == pieces.size()) return kj::READY_NOW;
  return slot().then([this, batch = std::move(batch), piece, at]() mutable {
    const PendingRecords::Piece& records = batch->records.pieces()[piece];
    const uint64_t end = std::min<uint64_t>(records.size(), at + kChunkBytes);
    while (at < end) {  // two calls if a gradient in place begins in between
      const auto left = records.from(at);
      const auto part = left.first(std::min<uint64_t>(left.size(), end - at));
      at += part.size();
      tasks_.add(link_->records(part, batch)
                     .then([this, bytes = part.size(), last = at == end](const Result<uint64_t>& held) {
                       if (!held.ok()) return close(held.status());
                       holds(*held, bytes);
                       reuseSent();
                       if (last) freeSlot();
                     }));
    }
    const bool pieceEnds = at == records.size();
    return send(std::move(batch), pieceEnds ? piece + 1 : piece, pieceEnds ? 0 : at);
  });
}

void ReplicaFeed::holds(uint64_t next, uint64_t bytes) {
  heard();
  replicator_->held(stream_, next, bytes);
}

kj::Promise<void> ReplicaFeed::keepBeating() {
  return timer_.afterDelay(config_.heartbeatMs * kj::MILLISECONDS)
      .then([this] { return link_->beat(); })
      .then([this](const Result<uint64_t>& held) -> kj::Promise<void> {
        if (!held.ok()) {
          close(held.status());
          return kj::READY_NOW;
        }
        holds(*held, 0);
        return keepBeating();
      });
}

}  // namespace psd

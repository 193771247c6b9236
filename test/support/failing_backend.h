#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "test/support/forwarding_backend.h"

namespace psd::testing {

/// A backend whose updates fail immediately on request. Thread-safe.
class FailingBackend final : public WrappingBackend {
 public:
  using WrappingBackend::WrappingBackend;

  /// After `updates` more updates, of any shard, the next one fails.
  void failAfter(int updates) { *state_ = updates; }

 private:
  using State = std::shared_ptr<std::atomic<int>>;

  class Storage final : public ForwardingStorage {
   public:
    Storage(std::unique_ptr<ShardStorage> inner, State state)
        : ForwardingStorage(std::move(inner)), state_(std::move(state)) {}

    void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
               Done done) override {
      if (fails()) return done(broken());
      ForwardingStorage::apply(lane, offset, gradient, update, std::move(done));
    }
    void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                      const UpdateScalars& update, Done done) override {
      if (fails()) return done(broken());
      ForwardingStorage::applyChanged(lane, offset, gradient, change, update, std::move(done));
    }
    void applyCombined(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                       const UpdateScalars& update, Done done) override {
      if (fails()) return done(broken());
      ForwardingStorage::applyCombined(lane, gradients, combination, update, std::move(done));
    }
    void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                 ReadDone done) override {
      if (fails()) return done(broken().error());
      ForwardingStorage::combine(lane, gradients, combination, std::move(done));
    }

   private:
    bool fails() { return (*state_)-- == 0; }
    static Status broken() { return {ErrorCode::internal, "the device is broken"}; }

    const State state_;
  };

  std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) override {
    return std::make_unique<Storage>(std::move(storage), state_);
  }

  const State state_ = std::make_shared<std::atomic<int>>(-1);
};

}  // namespace psd::testing

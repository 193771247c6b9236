#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "server/store/shard_storage.h"

namespace psd::testing {

/// The CPU backend, of which updates fail when they are told to. Thread-safe.
class FailingBackend : public Backend {
 public:
  std::string describe() const override { return cpu_->describe(); }
  std::unique_ptr<Lane> makeLane() override { return cpu_->makeLane(); }
  using Backend::allocate;
  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
      std::span<const ShardRequest> requests) override {
    PSD_ASSIGN_OR_RETURN(auto storages, cpu_->allocate(requests));
    for (auto& storage : storages) storage = std::make_unique<Storage>(std::move(storage), state_);
    return storages;
  }

  /// The update after `updates` more, of whatever shard, fails.
  void failAfter(int updates) { *state_ = updates; }

 private:
  using State = std::shared_ptr<std::atomic<int>>;

  class Storage : public ShardStorage {
   public:
    Storage(std::unique_ptr<ShardStorage> inner, State state)
        : inner_(std::move(inner)), state_(std::move(state)) {}

    uint64_t elementCount() const override { return inner_->elementCount(); }
    const Optimizer& optimizer() const override { return inner_->optimizer(); }
    void setOptimizer(const Optimizer& optimizer) override { inner_->setOptimizer(optimizer); }
    bool synchronous() const override { return inner_->synchronous(); }
    void write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) override {
      inner_->write(lane, offset, values, std::move(done));
    }
    void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
               Done done) override {
      if (fails()) return done(broken());
      inner_->apply(lane, offset, gradient, update, std::move(done));
    }
    void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                      const UpdateScalars& update, Done done) override {
      if (fails()) return done(broken());
      inner_->applyChanged(lane, offset, gradient, change, update, std::move(done));
    }
    void stage(Lane& lane, ReadView gradient, StageDone done) override {
      inner_->stage(lane, std::move(gradient), std::move(done));
    }
    void squaredDistances(Lane& lane, std::span<const StagedGradient> gradients,
                          DistancesDone done) override {
      inner_->squaredDistances(lane, gradients, std::move(done));
    }
    void combinedSquare(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                        SquareDone done) override {
      inner_->combinedSquare(lane, gradients, combination, std::move(done));
    }
    void applyCombined(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                       const UpdateScalars& update, Done done) override {
      if (fails()) return done(broken());
      inner_->applyCombined(lane, gradients, combination, update, std::move(done));
    }
    void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                 ReadDone done) override {
      if (fails()) return done(broken().error());
      inner_->combine(lane, gradients, combination, std::move(done));
    }
    void read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override {
      inner_->read(lane, offset, count, std::move(done));
    }
    void snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override {
      inner_->snapshot(lane, offset, count, std::move(done));
    }
    void readSlot(Lane& lane, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) override {
      inner_->readSlot(lane, slot, offset, count, std::move(done));
    }
    void writeSlot(Lane& lane, uint32_t slot, uint64_t offset, std::span<const float> values,
                   Done done) override {
      inner_->writeSlot(lane, slot, offset, values, std::move(done));
    }

   private:
    bool fails() { return (*state_)-- == 0; }
    static Status broken() { return {ErrorCode::internal, "the device is broken"}; }

    const std::unique_ptr<ShardStorage> inner_;
    const State state_;
  };

  const std::shared_ptr<Backend> cpu_ = makeCpuBackend();
  const State state_ = std::make_shared<std::atomic<int>>(-1);
};

}  // namespace psd::testing

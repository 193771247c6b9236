#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/store/backend.h"

namespace psd::testing {

/// A storage that forwards everything to another. As thread-safe as that one.
class ForwardingStorage : public ShardStorage {
 public:
  explicit ForwardingStorage(std::unique_ptr<ShardStorage> inner) : inner_(std::move(inner)) {}

  uint64_t elementCount() const override { return inner_->elementCount(); }
  const Optimizer& optimizer() const override { return inner_->optimizer(); }
  void setOptimizer(const Optimizer& optimizer) override { inner_->setOptimizer(optimizer); }
  bool synchronous() const override { return inner_->synchronous(); }
  void write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) override {
    inner_->write(lane, offset, values, std::move(done));
  }
  void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
             Done done) override {
    inner_->apply(lane, offset, gradient, update, std::move(done));
  }
  void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                    const UpdateScalars& update, Done done) override {
    inner_->applyChanged(lane, offset, gradient, change, update, std::move(done));
  }
  void stage(Lane& lane, ReadView gradient, StageDone done) override {
    inner_->stage(lane, std::move(gradient), std::move(done));
  }
  void squaredDistances(Lane& lane, std::span<const StagedGradient> gradients, DistancesDone done) override {
    inner_->squaredDistances(lane, gradients, std::move(done));
  }
  void addProducts(Lane& lane, std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                   InnerProducts sums, ProductsDone done) override {
    inner_->addProducts(lane, gradients, offset, count, std::move(sums), std::move(done));
  }
  void combinedSquare(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                      SquareDone done) override {
    inner_->combinedSquare(lane, gradients, combination, std::move(done));
  }
  void applyCombined(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                     const UpdateScalars& update, Done done) override {
    inner_->applyCombined(lane, gradients, combination, update, std::move(done));
  }
  void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
               ReadDone done) override {
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
  const std::unique_ptr<ShardStorage> inner_;
};

/// A backend, the CPU's or another, that wraps each of its storages in another one. Thread-safe.
class WrappingBackend : public Backend {
 public:
  explicit WrappingBackend(std::shared_ptr<Backend> inner = makeCpuBackend()) : inner_(std::move(inner)) {}

  std::string describe() const override { return inner_->describe(); }
  std::unique_ptr<Lane> makeLane() override { return inner_->makeLane(); }
  using Backend::allocate;
  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
      std::span<const ShardRequest> requests) override {
    PSD_ASSIGN_OR_RETURN(auto storages, inner_->allocate(requests));
    for (auto& storage : storages) storage = wrap(std::move(storage));
    return storages;
  }
  Result<std::unique_ptr<RowStorage>> makeRowStorage(uint32_t dim, const Optimizer& optimizer) override {
    return inner_->makeRowStorage(dim, optimizer);
  }

 protected:
  virtual std::unique_ptr<ShardStorage> wrap(std::unique_ptr<ShardStorage> storage) = 0;

 private:
  const std::shared_ptr<Backend> inner_;
};

}  // namespace psd::testing

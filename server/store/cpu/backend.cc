#include "server/store/backend.h"

#include <algorithm>
#include <array>
#include <utility>

#include <unistd.h>

#include "server/store/arena_plan.h"
#include "server/store/cpu/arena.h"
#include "server/store/cpu/combine_loops.h"
#include "server/store/cpu/racy_loops.h"
#include "server/store/squared_norm.h"
#include "server/store/staging_pool.h"

namespace psd {
namespace {

constexpr uint64_t kIdleSnapshotBytesMax = uint64_t{64} << 20;

uint64_t physicalBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

/// A pool of buffers for snapshots. Owned by one event loop's thread; its buffers may be released on any
/// thread.
class CpuLane : public Lane {
 public:
  Result<std::shared_ptr<float>> buffer(uint64_t count) { return pool_->acquire(count); }

 private:
  std::shared_ptr<StagingPool> pool_ = StagingPool::make(
      StagingPool::hostMemory(), {.lentBytesMax = UINT64_MAX, .idleBytesMax = kIdleSnapshotBytesMax});
};

/// Memory shared by the shards of one allocation. Immutable except for the floats themselves.
struct Memory {
  std::shared_ptr<Arena> weights;
  std::shared_ptr<Arena> slots;
};

/// A shard in the arenas of its allocation. Thread-safe as ShardStorage requires: calls may race element by
/// element.
class CpuStorage : public ShardStorage {
 public:
  CpuStorage(std::shared_ptr<const Memory> memory, uint64_t index, const ShardRequest& request,
             float* weights, std::vector<float*> slots)
      : memory_(std::move(memory)),
        index_(index),
        count_(request.elements),
        optimizer_(request.optimizer),
        weights_(weights),
        slots_(std::move(slots)) {}

  uint64_t elementCount() const override { return count_; }
  const Optimizer& optimizer() const override { return optimizer_; }
  void setOptimizer(const Optimizer& optimizer) override { optimizer_ = optimizer; }
  bool synchronous() const override { return true; }

  std::optional<SharedPlace> sharedPlace() const override {
    const Arena& arena = *memory_->weights;
    if (!arena.file()) return {};
    const auto before = static_cast<uint64_t>(weights_ - arena.data());
    return SharedPlace{arena.file(), before * sizeof(float), arena.versionAt(index_), arena.readableAt()};
  }

  void write(Lane&, uint64_t offset, std::span<const float> values, Done done) override {
    racyCopy(values.size(), values.data(), weights_ + offset);
    done({});
  }

  void apply(Lane&, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
             Done done) override {
    if (!gradient.codec()) {
      racyApply(optimizer_, update, offset, gradient.size(), weights_, gradient.values().data(), slots_);
    } else if (gradient.codec()->entryCount(gradient.bytes(), gradient.size()) && !update.pushed &&
               optimizer_.zerosChangeNothing()) {
      applyEntries(offset, gradient, update);
    } else {
      applyBlocks(offset, gradient, update, [](uint64_t, std::span<float>) {});
    }
    done({});
  }

  void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient, const GradientChange& change,
                    const UpdateScalars& update, Done done) override {
    if (change.none()) return apply(lane, offset, gradient, update, std::move(done));
    if (change.adaptive && !meanSquares_) {
      auto squares = Arena::map(count_);
      if (!squares.ok()) return done(squares.status());
      meanSquares_ = *std::move(squares);
    }
    applyBlocks(offset, gradient, update, [&](uint64_t begin, std::span<float> block) {
      racyChange(elementChange(change), block.size(), weights_ + offset + begin,
                 change.pulled.empty() ? nullptr : change.pulled.data() + begin,
                 change.adaptive ? meanSquares_->data() + offset + begin : nullptr, block.data());
    });
    done({});
  }

  void stage(Lane&, ReadView gradient, StageDone done) override {
    done(StagedGradient{gradient.values, std::move(gradient.owner)});
  }

  void squaredDistances(Lane&, std::span<const StagedGradient> gradients, DistancesDone done) override {
    done(psd::squaredDistances(gradients));
  }

  void addProducts(Lane&, std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                   InnerProducts sums, ProductsDone done) override {
    psd::addProducts(gradients, offset, count, sums);
    done(std::move(sums));
  }

  void combinedSquare(Lane&, std::span<const StagedGradient> gradients, const Combination& combination,
                      SquareDone done) override {
    double sum = 0;
    combineBlocks(gradients, combination,
                  [&](uint64_t, std::span<const float> block) { sum += squaredNorm(block); });
    done(sum);
  }

  void applyCombined(Lane&, std::span<const StagedGradient> gradients, const Combination& combination,
                     const UpdateScalars& update, Done done) override {
    const bool changes = !combination.change.none();
    combineBlocks(gradients, combination, [&](uint64_t offset, std::span<float> block) {
      if (changes) {
        racyChange(elementChange(combination.change), block.size(), weights_ + offset, nullptr, nullptr,
                   block.data());
      }
      racyApply(optimizer_, update, offset, block.size(), weights_, block.data(), slots_);
    });
    done({});
  }

  void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
               ReadDone done) override {
    auto buffer = static_cast<CpuLane&>(lane).buffer(count_);
    if (!buffer.ok()) return done(buffer.error());
    Combiner combiner(gradients, combination);
    for (uint64_t offset = 0; offset < count_; offset += Combiner::kBlockElements) {
      combiner.combine(offset, std::min<uint64_t>(Combiner::kBlockElements, count_ - offset),
                       buffer->get() + offset);
    }
    done(ReadView{{buffer->get(), count_}, *buffer});
  }

  void read(Lane&, uint64_t offset, uint64_t count, ReadDone done) override {
    done(ReadView{{weights_ + offset, count}, nullptr});
  }

  void snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) override {
    copyOut(lane, weights_ + offset, count, done);
  }

  void readSlot(Lane&, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) override {
    done(ReadView{{slots_[slot] + offset, count}, nullptr});
  }

  void writeSlot(Lane&, uint32_t slot, uint64_t offset, std::span<const float> values, Done done) override {
    racyCopy(values.size(), values.data(), slots_[slot] + offset);
    done({});
  }

 private:
  static constexpr uint64_t kBlockElements = 4096;  // 16 KiB: a decoded block stays in the L1 cache

  /// Applies the gradient block by block; `change(begin, block)` first modifies the values from gradient
  /// element `begin` on.
  template <class Change>
  void applyBlocks(uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
                   const Change& change) {
    alignas(64) std::array<float, kBlockElements> block;
    for (uint64_t begin = 0; begin < gradient.size(); begin += block.size()) {
      const uint64_t some = std::min<uint64_t>(block.size(), gradient.size() - begin);
      gradient.copyTo(begin, std::span(block).first(some));
      change(begin, std::span(block).first(some));
      racyApply(optimizer_, update, offset + begin, some, weights_, block.data(), slots_);
    }
  }

  /// Calls `visit(offset, block)` for each block of the combined gradient.
  template <class Visit>
  void combineBlocks(std::span<const StagedGradient> gradients, const Combination& combination,
                     const Visit& visit) const {
    Combiner combiner(gradients, combination);
    alignas(64) std::array<float, Combiner::kBlockElements> block;
    for (uint64_t offset = 0; offset < count_; offset += block.size()) {
      const uint64_t some = std::min<uint64_t>(block.size(), count_ - offset);
      combiner.combine(offset, some, block.data());
      visit(offset, std::span(block).first(some));
    }
  }

  /// Updates only the weights whose gradient is not zero.
  void applyEntries(uint64_t offset, const Gradient& gradient, const UpdateScalars& update) {
    std::array<uint32_t, kBlockElements> places;
    std::array<float, kBlockElements> values;
    const uint64_t entries = *gradient.codec()->entryCount(gradient.bytes(), gradient.size());
    for (uint64_t first = 0; first < entries; first += places.size()) {
      const uint64_t some = std::min<uint64_t>(places.size(), entries - first);
      gradient.codec()->entries(gradient.bytes(), gradient.size(), first, std::span(places).first(some),
                                std::span(values).first(some));
      racyApplyAt(optimizer_, update, some, places.data(), values.data(), weights_ + offset);
    }
  }

  static void copyOut(Lane& lane, const float* from, uint64_t count, const ReadDone& done) {
    auto buffer = static_cast<CpuLane&>(lane).buffer(count);
    if (!buffer.ok()) return done(buffer.error());
    racyCopy(count, from, buffer->get());
    done(ReadView{{buffer->get(), count}, *buffer});
  }

  const std::shared_ptr<const Memory> memory_;
  const uint64_t index_;  // in its allocation
  const uint64_t count_;
  Optimizer optimizer_;
  float* const weights_;
  const std::vector<float*> slots_;
  std::shared_ptr<Arena> meanSquares_;  // for adaptive compensation, allocated on first use
};

/// Host memory of this machine. Thread-safe.
class CpuBackend : public Backend {
 public:
  explicit CpuBackend(bool shared) : shared_(shared) {}

  std::string describe() const override { return "cpu"; }
  std::unique_ptr<Lane> makeLane() override { return std::make_unique<CpuLane>(); }

  using Backend::allocate;
  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
      std::span<const ShardRequest> requests) override {
    PSD_ASSIGN_OR_RETURN(const ArenaPlan plan, planArena(requests, "cpu", physicalBytes()));
    auto memory = std::make_shared<Memory>();
    PSD_ASSIGN_OR_RETURN(memory->weights, mapWeights(plan.elements, requests.size()));
    PSD_ASSIGN_OR_RETURN(memory->slots, Arena::map(plan.slotElements));
    std::vector<std::unique_ptr<ShardStorage>> shards;
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<Slot> kinds = requests[i].optimizer.slots();
      std::vector<float*> slots;
      for (size_t slot = 0; slot < kinds.size(); ++slot) {
        slots.push_back(memory->slots->data() + plan.slotBegins[i][slot]);
        if (kinds[slot].initialValue == 0.f) continue;  // the arena is zeroed without being touched
        std::fill_n(slots.back(), requests[i].elements, kinds[slot].initialValue);
      }
      shards.push_back(std::make_unique<CpuStorage>(
          memory, i, requests[i], memory->weights->data() + plan.begins[i], std::move(slots)));
    }
    return shards;
  }

  Result<std::unique_ptr<RowStorage>> makeRowStorage(uint32_t dim, const Optimizer& optimizer) override {
    return makeCpuRowStorage(dim, optimizer);
  }

 private:
  Result<std::shared_ptr<Arena>> mapWeights(uint64_t elements, uint64_t shards) const {
    if (shared_) {
      auto shared = Arena::share(elements, shards);
      if (shared.ok()) return shared;
    }
    return Arena::map(elements);
  }

  const bool shared_;
};

}  // namespace

std::shared_ptr<Backend> makeCpuBackend(bool shared) { return std::make_shared<CpuBackend>(shared); }

}  // namespace psd

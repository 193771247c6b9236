#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "common/os/shared_memory.h"
#include "common/status/status.h"
#include "server/optimizer/optimizer.h"
#include "server/store/combination.h"
#include "server/store/gradient.h"
#include "server/store/gradient_change.h"

namespace psd {

/// Float32 values in host memory, readable until `owner` is released. A null owner means that the
/// bytes live as long as the storage does and may change while they are read (a live view).
struct ReadView {
  std::span<const float> values;
  std::shared_ptr<const void> owner;
};

/// Where a shard lies in a memory file that other processes can map. Places are bytes in the file.
struct SharedPlace {
  std::shared_ptr<SharedMemory> file;
  uint64_t valuesAt = 0;   ///< the weights
  uint64_t versionAt = 0;  ///< a lock-free 64-bit atomic for the count of applied updates
  uint64_t readableAt =
      0;  ///< a lock-free 64-bit atomic: 0 while others must not read; one for the whole file, at first 1
};

/// A word of a memory file that several processes read.
inline std::atomic<uint64_t>& sharedWord(SharedMemory& file, uint64_t at) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  return *reinterpret_cast<std::atomic<uint64_t>*>(file.data() + at);
}

/// Ordered execution context of one event loop on one device (on CUDA: a stream and a pool of
/// pinned buffers; on the CPU nothing). Used by its own loop's thread only.
class Lane {
 public:
  virtual ~Lane() = default;
};

/// The weights and optimizer state of one shard on one device.
///
/// Operations may be asynchronous: `done` is called exactly once, inline when `synchronous()`, else
/// from a thread of the device's driver (inline too when the device refuses even to queue it); it
/// must not block, nor destroy the lane. Spans given by the caller stay valid until then.
/// Operations of one lane happen in the order of the calls; operations of different lanes are not
/// ordered and may race element by element (Hogwild!), which is well defined here: an element is
/// read and written whole. Whoever needs more takes the shard's lock. Offsets and counts are in
/// elements, inside the shard (the caller has checked), offsets a multiple of kLayoutGrainElements.
class ShardStorage {
 public:
  using Done = std::function<void(Status)>;
  using ReadDone = std::function<void(Result<ReadView>)>;
  using StageDone = std::function<void(Result<StagedGradient>)>;
  using DistancesDone = std::function<void(Result<SquaredDistances>)>;
  using ProductsDone = std::function<void(Result<InnerProducts>)>;
  using SquareDone = std::function<void(Result<double>)>;

  virtual ~ShardStorage() = default;

  virtual uint64_t elementCount() const = 0;
  virtual const Optimizer& optimizer() const = 0;
  /// Takes over the numbers of `optimizer`, which has the slots of this storage. Only while no operation is
  /// under way.
  virtual void setOptimizer(const Optimizer& optimizer) = 0;
  virtual bool synchronous() const = 0;
  /// Where the weights lie in a memory file; nothing where they lie in memory of this process alone.
  virtual std::optional<SharedPlace> sharedPlace() const { return {}; }

  /// weights[offset …] = values.
  virtual void write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) = 0;
  /// One optimizer step over weights[offset …] with the gradient given. What a codec made is decoded block by
  /// block on the way.
  virtual void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
                     Done done) = 0;
  /// One optimizer step, as apply() makes it, with what `change` makes of the gradient on the way. Adaptive
  /// compensation only with the shard's lock held; its mean squares are allocated, as zeros, when they are
  /// first asked for.
  virtual void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient,
                            const GradientChange& change, const UpdateScalars& update, Done done) = 0;

  // The next four work on memory of this shard's device, `onDevice`, that another process maps too
  // (SharedDeviceMemory). Backends that share no memory have none of them.

  /// Copies a gradient from shared memory of the device into other memory of it (ErrorCode::overloaded where
  /// it has no room). ErrorCode::nonFinite when some value of the copy is NaN or infinite.
  virtual void take(Lane&, std::span<const float> /*onDevice*/, StageDone done) { done(sharesNone()); }
  /// Copies values from shared or any other memory of the device to host memory.
  virtual void fetch(Lane&, std::span<const float> /*onDevice*/, ReadDone done) { done(sharesNone()); }
  /// onDevice = weights[offset …], as read() gives them.
  virtual void readTo(Lane&, uint64_t /*offset*/, std::span<float> /*onDevice*/, Done done) {
    done(sharesNone());
  }
  /// onDevice = values of host memory.
  virtual void put(Lane&, std::span<const float> /*values*/, std::span<float> /*onDevice*/, Done done) {
    done(sharesNone());
  }

  /// Takes a gradient for the whole shard to the memory of its device: on the CPU at once and without a copy,
  /// on other devices into memory of their own, as far as Backend::limitStaged() allows
  /// (ErrorCode::overloaded).
  virtual void stage(Lane& lane, ReadView gradient, StageDone done) = 0;
  /// ‖a − b‖² over this shard for each pair of gradients that were staged here. Here and below the list
  /// itself need only live until the call returns.
  virtual void squaredDistances(Lane& lane, std::span<const StagedGradient> gradients,
                                DistancesDone done) = 0;
  /// Adds to `sums` what `count` elements from `offset` on add to the inner products of gradients that were
  /// staged here.
  virtual void addProducts(Lane& lane, std::span<const StagedGradient> gradients, uint64_t offset,
                           uint64_t count, InnerProducts sums, ProductsDone done) = 0;
  /// ‖g‖² over this shard of what gradients that were staged here combine to, before Combination::change.
  virtual void combinedSquare(Lane& lane, std::span<const StagedGradient> gradients,
                              const Combination& combination, SquareDone done) = 0;
  /// One optimizer step over all weights with gradients that were staged here, combined into one. At least
  /// one gradient; `combination` fits their number.
  virtual void applyCombined(Lane& lane, std::span<const StagedGradient> gradients,
                             const Combination& combination, const UpdateScalars& update, Done done) = 0;

  /// Combines gradients that were staged here into one, as applyCombined() does it, in host memory.
  /// Combination::change is not made: what is combined here goes to the log, with which the configuration
  /// lets nothing be clipped.
  virtual void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                       ReadDone done) = 0;

  /// The weights for sending: on the CPU a live view, on other devices a staged copy.
  virtual void read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) = 0;
  /// A copy of the weights that later updates do not change.
  virtual void snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) = 0;
  /// Optimizer slot `slot` (0 … slotCount−1), as read() gives the weights; for checkpoints and tests.
  virtual void readSlot(Lane& lane, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) = 0;
  /// slot[offset …] = values, when a checkpoint is restored.
  virtual void writeSlot(Lane& lane, uint32_t slot, uint64_t offset, std::span<const float> values,
                         Done done) = 0;

 private:
  static Error sharesNone() { return {ErrorCode::internal, "this device shares no memory"}; }
};

}  // namespace psd

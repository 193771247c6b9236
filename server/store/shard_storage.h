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

/// Float32 values in host memory, valid until `owner` is released. A null owner means a live view: the memory
/// lives as long as the storage and may change while it is read.
struct ReadView {
  std::span<const float> values;
  std::shared_ptr<const void> owner;
};

/// Location of a shard in a memory file that other processes can map. Offsets are in bytes.
struct SharedPlace {
  std::shared_ptr<SharedMemory> file;
  uint64_t valuesAt = 0;   ///< the weights
  uint64_t versionAt = 0;  ///< a lock-free 64-bit atomic counter of applied updates
  uint64_t readableAt =
      0;  ///< a lock-free 64-bit atomic, one per file: 0 while others must not read; initially 1
};

/// A word of a memory file that is shared between processes.
inline std::atomic<uint64_t>& sharedWord(SharedMemory& file, uint64_t at) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  return *reinterpret_cast<std::atomic<uint64_t>*>(file.data() + at);
}

/// Ordered execution context of one event loop on one device (on CUDA: a stream and a pool of pinned buffers;
/// on the CPU: nothing but a buffer pool). Used only by its loop's thread.
class Lane {
 public:
  virtual ~Lane() = default;
};

/// The weights and optimizer state of one shard on one device.
///
/// Operations may be asynchronous: `done` is called exactly once, inline if `synchronous()`, else from a
/// thread of the device's driver (or inline if the device fails to queue the operation). `done` must not
/// block, nor destroy the lane. Spans passed by the caller must stay valid until then. Operations of one lane
/// execute in call order. Operations of different lanes are unordered and may race element by element
/// (Hogwild!), which is well defined here: each element is read and written atomically. A caller that needs
/// more takes the shard's lock. Offsets and counts are in elements and within the shard (checked by the
/// caller); offsets are multiples of kLayoutGrainElements.
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
  /// Replaces the optimizer's hyperparameters; `optimizer` must have the same slots. No operation may be in
  /// progress.
  virtual void setOptimizer(const Optimizer& optimizer) = 0;
  virtual bool synchronous() const = 0;
  /// Location of the weights in a memory file; empty if they are in memory private to this process.
  virtual std::optional<SharedPlace> sharedPlace() const { return {}; }

  /// weights[offset …] = values.
  virtual void write(Lane& lane, uint64_t offset, std::span<const float> values, Done done) = 0;
  /// One optimizer step over weights[offset …] with the given gradient. An encoded gradient is decoded block
  /// by block in the process.
  virtual void apply(Lane& lane, uint64_t offset, const Gradient& gradient, const UpdateScalars& update,
                     Done done) = 0;
  /// Like apply(), with `change` applied to the gradient. Adaptive compensation requires the shard's lock;
  /// its mean squares are allocated, zeroed, on first use.
  virtual void applyChanged(Lane& lane, uint64_t offset, const Gradient& gradient,
                            const GradientChange& change, const UpdateScalars& update, Done done) = 0;

  // The next four operate on memory of this shard's device, `onDevice`, that another process maps too
  // (SharedDeviceMemory). Backends without shared memory do not support them.

  /// Copies a gradient from shared device memory to private device memory (ErrorCode::overloaded if there is
  /// not enough). ErrorCode::nonFinite if a copied value is NaN or infinite.
  virtual void take(Lane&, std::span<const float> /*onDevice*/, StageDone done) {
    done(sharingUnsupported());
  }
  /// Copies values from any device memory, shared or not, to host memory.
  virtual void fetch(Lane&, std::span<const float> /*onDevice*/, ReadDone done) {
    done(sharingUnsupported());
  }
  /// onDevice = weights[offset …], like read().
  virtual void readTo(Lane&, uint64_t /*offset*/, std::span<float> /*onDevice*/, Done done) {
    done(sharingUnsupported());
  }
  /// onDevice = values in host memory.
  virtual void put(Lane&, std::span<const float> /*values*/, std::span<float> /*onDevice*/, Done done) {
    done(sharingUnsupported());
  }

  /// Makes a gradient of the whole shard available on its device: immediate and without a copy on the CPU, a
  /// copy to device memory elsewhere, within Backend::limitStagedBytes() (ErrorCode::overloaded).
  virtual void stage(Lane& lane, ReadView gradient, StageDone done) = 0;
  /// ‖a − b‖² over this shard for each pair of staged gradients. Here and below, the gradients must be staged
  /// on this storage, and the span itself need only live until the call returns.
  virtual void squaredDistances(Lane& lane, std::span<const StagedGradient> gradients,
                                DistancesDone done) = 0;
  /// Adds to `sums` the inner products over `count` elements from `offset` on.
  virtual void addProducts(Lane& lane, std::span<const StagedGradient> gradients, uint64_t offset,
                           uint64_t count, InnerProducts sums, ProductsDone done) = 0;
  /// ‖g‖² over this shard of the combined gradient, before Combination::change.
  virtual void combinedSquare(Lane& lane, std::span<const StagedGradient> gradients,
                              const Combination& combination, SquareDone done) = 0;
  /// One optimizer step over all weights with the combined gradient. Requires at least one gradient;
  /// `combination` must match their number.
  virtual void applyCombined(Lane& lane, std::span<const StagedGradient> gradients,
                             const Combination& combination, const UpdateScalars& update, Done done) = 0;

  /// Combines gradients in host memory as applyCombined() does, but without Combination::change: the result
  /// is for the log, and configurations with a log do not allow clipping.
  virtual void combine(Lane& lane, std::span<const StagedGradient> gradients, const Combination& combination,
                       ReadDone done) = 0;

  /// Reads weights to send: a live view on the CPU, a staged copy on other devices.
  virtual void read(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) = 0;
  /// Copies weights; later updates do not change the copy.
  virtual void snapshot(Lane& lane, uint64_t offset, uint64_t count, ReadDone done) = 0;
  /// Reads optimizer slot `slot` (0 … slotCount−1) like read(); for checkpoints and tests.
  virtual void readSlot(Lane& lane, uint32_t slot, uint64_t offset, uint64_t count, ReadDone done) = 0;
  /// slot[offset …] = values, to restore a checkpoint.
  virtual void writeSlot(Lane& lane, uint32_t slot, uint64_t offset, std::span<const float> values,
                         Done done) = 0;

 private:
  static Error sharingUnsupported() {
    return {ErrorCode::internal, "the device does not support shared memory"};
  }
};

}  // namespace psd

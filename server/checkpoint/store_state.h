#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/model_state.h"
#include "server/store/parameter_store.h"

namespace psd {

/// A copy of a shard's weights and optimizer slots in host memory. The memory is allocated and touched once,
/// so that a copy under the shard's lock causes no page faults. Owned by one thread.
class ShardImage {
 public:
  /// Allocates memory for the largest of these shards. ErrorCode::overloaded, naming the bytes, if there is
  /// none.
  static Result<ShardImage> make(const ParameterStore& store, std::span<const size_t> shards);

  /// Copies the shard. Blocks; a consistent copy requires the shard's lock. `lane` belongs to the calling
  /// thread and to the shard's device.
  Status copy(Shard& shard, Lane& lane);

  /// Weights first, then the slots in the optimizer's order; valid until the next copy.
  std::vector<CheckpointWriter::Plane> planes() const;
  /// Size of the image in memory.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  ShardImage() = default;
  std::vector<std::vector<std::string>> groupNames_;  // per parameter group, the planes of its shards
  std::vector<std::string> names_;                    // planes of the copied shard
  uint64_t elements_ = 0;                             // of the copied shard
  uint64_t bytes_ = 0;
  std::unique_ptr<float[], Free> memory_;
};

/// A store's manifest without files. `policies`: names of the policies by parameter group.
Manifest describeStore(const ParameterStore& store, const std::vector<std::string>& policies);

/// If the checkpoint is of another model than the store, an Error that names the first difference.
Status checkModel(const Checkpoint& checkpoint, const ParameterStore& store);

/// Restores a checkpoint into a store, whatever its shards, devices and optimizer: always the weights and
/// update numbers, and the optimizer state if the optimizer's type is the same. A shard with several sources
/// resumes from the highest of their update numbers. Blocks; requires exclusive use of the store. `notes`:
/// what was not restored, one line each.
struct Restored {
  std::vector<std::string> notes;
};
Result<Restored> restoreStore(Env& env, const Checkpoint& checkpoint, ParameterStore& store);

/// Like restoreStore(), but restores a partition, whose layout has the offset `begin` in the whole model's,
/// from the checkpoints of all old partitions, however many. Restores pushes only from checkpoints of the
/// same partition: trainers that pushed to others were connected to the old daemons and do not return. The
/// first partition has the buffers.
Result<Restored> restorePartition(Env& env, std::span<const PlacedCheckpoint> from, ParameterStore& store,
                                  uint64_t begin);

/// The values and optimizer state of all shards. Blocks. No update may be in progress.
Result<ModelState> stateOf(ParameterStore& store);

/// Replaces values, optimizer state and versions of all shards, under their locks: a shard's version becomes
/// its number of steps, or one more than before if that is larger. Blocks. No update may be in progress.
/// After an error some values may be replaced, but no version.
/// `pristine`: see ParameterBlock::replace().
Status replaceState(ParameterStore& store, const ModelState& state, bool pristine);

/// The parameter groups of `model`, whose layout has the offset `begin` in the whole model's, according to
/// checkpoints that hold all of it.
StoreGroups groupsOf(std::span<const PlacedCheckpoint> from, const ModelSpec& model, uint64_t begin);

/// Exports all tensors and buffers of a checkpoint as one safetensors file under their names, atomically.
Status exportCheckpoint(Env& env, const Checkpoint& checkpoint, const std::string& to);

}  // namespace psd

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/store/parameter_store.h"

namespace psd {

/// A shard's weights and optimizer slots in host memory. The memory is taken and touched once, so that a copy
/// made under the shard's lock meets no fresh page. Owned by one thread.
class ShardImage {
 public:
  /// Makes room for any one of these shards of the store. ErrorCode::overloaded, naming the bytes, when there
  /// is none.
  static Result<ShardImage> make(const ParameterStore& store, std::span<const size_t> shards);

  /// Copies the shard as it is. Blocks; whoever wants it whole holds its lock. `lane` belongs to the calling
  /// thread and to the shard's device.
  Status copy(Shard& shard, Lane& lane);

  /// Weights first, then the slots in the optimizer's order; valid until the next copy.
  std::vector<CheckpointWriter::Plane> planes() const;
  /// Bytes of memory that the image takes.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  ShardImage() = default;
  std::vector<std::vector<std::string>> groupNames_;  // planes of the shards of each parameter group
  std::vector<std::string> names_;                    // planes of the shard that was copied
  uint64_t elements_ = 0;                             // of the shard that was copied
  uint64_t bytes_ = 0;
  std::unique_ptr<float[], Free> memory_;
};

/// The manifest of a store, without its files. `policies`: the name of each parameter group's policy.
Manifest describeStore(const ParameterStore& store, const std::vector<std::string>& policies);

/// An Error that names the first difference where a checkpoint is of another model than the store.
Status checkModel(const Checkpoint& checkpoint, const ParameterStore& store);

/// Fills the store with a checkpoint's values, whatever its shards, devices and optimizer: weights always,
/// optimizer state where the optimizer is of the same type, update numbers in any case. Where a shard takes
/// from several, it goes on from the highest of their numbers. Blocks; before anybody else uses the store.
/// `notes`: what was not taken over, a line each.
struct Restored {
  std::vector<std::string> notes;
};
Result<Restored> restoreStore(Env& env, const Checkpoint& checkpoint, ParameterStore& store);

/// Fills a store, whose layout begins at `begin` of the whole model's, as restoreStore() does, with what the
/// checkpoints of all partitions hold of it, however many these are. Of checkpoints of other partitions than
/// the store's no pushes are taken over: who made them knows the daemons of then, and does not come back.
Result<Restored> restorePartition(Env& env, std::span<const PlacedCheckpoint> from, ParameterStore& store,
                                  uint64_t begin);

/// How the tensors and tables of `model`, whose layout begins at `begin` of the whole one's, form parameter
/// groups, by what checkpoints that hold all of it say.
StoreGroups groupsOf(std::span<const PlacedCheckpoint> from, const ModelSpec& model, uint64_t begin);

/// Writes one embedding table of a checkpoint as a safetensors file, atomically: "keys", U64 [rows], and
/// "values", F32 [rows, dim], by the hashes of the ids.
Status exportTable(Env& env, const Checkpoint& checkpoint, const std::string& table, const std::string& to);

/// Writes all tensors of the model of a checkpoint as one safetensors file under their names, atomically.
Status exportCheckpoint(Env& env, const Checkpoint& checkpoint, const std::string& to);

}  // namespace psd

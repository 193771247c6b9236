#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/os/env.h"
#include "common/plan/shard_plan.h"
#include "common/safetensors/safetensors.h"
#include "common/types/model_layout.h"
#include "common/types/model_spec.h"
#include "server/optimizer/optimizer.h"
#include "server/store/backend.h"
#include "server/store/buffers.h"
#include "server/store/rows/row_shard.h"
#include "server/store/shard.h"

namespace psd {

/// The lanes of one event loop, one per backend of the store. Owned by that loop's thread.
using Lanes = std::vector<std::unique_ptr<Lane>>;

/// Location of the whole arena in a memory file that other processes can map. Offsets are in bytes.
struct SharedArena {
  std::shared_ptr<SharedMemory> file;
  uint64_t valuesAt = 0;     ///< element 0, followed by the other elements
  uint64_t versionsAt = 0;   ///< counter of the updates applied to shard 0
  uint64_t versionStep = 0;  ///< distance between the counters of consecutive shards
  uint64_t readableAt = 0;   ///< word that is 0 while other processes must not read the parameters
};

/// Assignment of a model's tensors and tables to parameter groups, each with its own optimizer. A value type.
struct StoreGroups {
  std::vector<uint32_t> groupOfTensor;  ///< index into optimizers, per tensor of the model
  std::vector<Optimizer> optimizers;
  std::vector<uint32_t> groupOfTable = {};  ///< index into optimizers, per table of the model
  uint32_t rowShards = 1;                   ///< number of row shards per group
  std::vector<bool> rowSteps = {};          ///< per table of the model; see RowShard::Table; empty: all true
};

/// The parameters of one model: a flat arena split into shards, and the embedding tables, which are split
/// into row shards together with the other tables of their group. Shards and row shards are placed on the
/// backends round-robin by number. Immutable except for the blocks and the buffers, which document their own
/// thread-safety.
class ParameterStore {
 public:
  /// Creates a store. `backends` must not be empty. ErrorCode::overloaded if a device is out of memory.
  static Result<std::unique_ptr<ParameterStore>> create(ModelSpec model, uint32_t shardCount,
                                                        std::vector<std::shared_ptr<Backend>> backends,
                                                        StoreGroups groups);
  /// Creates a store for a model with a single parameter group.
  static Result<std::unique_ptr<ParameterStore>> create(ModelSpec model, uint32_t shardCount,
                                                        std::vector<std::shared_ptr<Backend>> backends,
                                                        const Optimizer& optimizer);

  const ModelSpec& model() const { return model_; }
  const ModelLayout& layout() const { return layout_; }
  const ShardPlan& plan() const { return plan_; }
  size_t groupCount() const { return groups_.optimizers.size(); }
  /// The current optimizer of a group.
  Optimizer optimizer(uint32_t group) const {
    const std::lock_guard lock(optimizersMutex_);
    return groups_.optimizers[group];
  }
  Optimizer optimizerOf(const ParameterBlock& block) const { return optimizer(block.group()); }
  /// Replaces the hyperparameters of a group's optimizer; the slots must be the same. No update may be in
  /// progress.
  void setOptimizer(uint32_t group, const Optimizer& optimizer);
  /// Sets the rules of a table in all row shards, effective from the next update. Existing rows remain until
  /// a rule evicts them. Thread-safe.
  void setRowRules(uint32_t table, const RowRules& rules);
  /// Limits the memory of all embedding tables together. Existing rows remain.
  void setTableBytesMax(uint64_t bytes) { tableBytes_->setLimit(bytes); }
  size_t shardCount() const { return shards_.size(); }
  Shard& shard(size_t index) { return *shards_[index]; }
  const Shard& shard(size_t index) const { return *shards_[index]; }
  size_t rowShardCount() const { return rowShards_.size(); }
  RowShard& rowShard(size_t index) { return *rowShards_[index]; }
  const RowShard& rowShard(size_t index) const { return *rowShards_[index]; }
  /// All blocks by number: first the shards of the arena, then the row shards.
  size_t blockCount() const { return shards_.size() + rowShards_.size(); }
  ParameterBlock& block(size_t index) {
    if (index < shards_.size()) return *shards_[index];
    return *rowShards_[index - shards_.size()];
  }
  const ParameterBlock& block(size_t index) const { return const_cast<ParameterStore*>(this)->block(index); }
  Buffers& buffers() { return buffers_; }
  const Buffers& buffers() const { return buffers_; }
  /// Human-readable: "cpu", or the devices joined by ", ".
  std::string describeDevices() const;

  /// Location of the arena in a memory file; empty unless all shards are contiguous in one file.
  std::optional<SharedArena> sharedArena() const;
  /// Sets whether processes that map the arena may read it. Initially they may.
  void setSharedReadable(bool readable);

  Lanes makeLanes() const;

  /// Whether the devices of all shards support sharing memory with other processes.
  bool sharesDeviceMemory() const;
  size_t deviceCount() const { return backends_.size(); }
  /// Backend::shareMemory() of the device with index Shard::device().
  Result<std::shared_ptr<SharedDeviceMemory>> shareDeviceMemory(size_t device, uint64_t bytes) {
    return backends_[device]->shareMemory(bytes);
  }

 private:
  ParameterStore(ModelSpec model, ShardPlan plan, std::vector<std::shared_ptr<Backend>> backends,
                 StoreGroups groups);
  Status makeRowShards();

  ModelSpec model_;
  ModelLayout layout_;
  ShardPlan plan_;
  std::vector<std::shared_ptr<Backend>> backends_;
  mutable std::mutex optimizersMutex_;  // guards groups_.optimizers
  StoreGroups groups_;
  const std::shared_ptr<TableBudget> tableBytes_ = TableBudget::make(UINT64_MAX);
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<RowShard>> rowShards_;
  Buffers buffers_;
};

/// Writes all parameters and buffers to one safetensors file, atomically. Blocks. No update may be in
/// progress.
Status saveParameters(Env& env, const std::string& path, ParameterStore& store);

/// Copies the weights and buffers of one store to another, weights by tensor name; the order of the tensors
/// may differ. Blocks. Neither store may be updated meanwhile.
Status copyParameters(ParameterStore& from, ParameterStore& to);

/// Loads the store from a file's tensors, matched by name, and its buffers. Blocks. Must be called before any
/// other thread uses the store. Fails if a tensor is missing, has another shape, or holds NaN or infinity.
Status loadParameters(const SafetensorsReader& file, ParameterStore& store);

}  // namespace psd

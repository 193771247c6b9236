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
#include "server/store/rows/row_shard.h"
#include "server/store/shard.h"

namespace psd {

/// One event loop's lanes, one per backend of the store. Owned by that loop's thread.
using Lanes = std::vector<std::unique_ptr<Lane>>;

/// Where a whole arena lies in a memory file that other processes can map. Places are bytes in the file.
struct SharedArena {
  std::shared_ptr<SharedMemory> file;
  uint64_t valuesAt = 0;     ///< element 0; the other elements follow
  uint64_t versionsAt = 0;   ///< the count of updates that shard 0 has applied
  uint64_t versionStep = 0;  ///< distance from one shard's count to the next shard's
  uint64_t readableAt = 0;   ///< a word that is 0 while the parameters must not be read here
};

/// How a model's tensors and tables form parameter groups, each with its own optimizer. A value type.
struct StoreGroups {
  std::vector<uint32_t> groupOfTensor;  ///< index into optimizers, per tensor of the model
  std::vector<Optimizer> optimizers;
  std::vector<uint32_t> groupOfTable = {};  ///< index into optimizers, per table of the model
  uint32_t rowShards = 1;                   ///< into which the tables of each group are cut
  std::vector<bool> rowSteps = {};          ///< per table of the model, see RowShard::Table; empty: all true
};

/// The parameters of one model: a flat arena cut into shards, and the embedding tables, of which those of a
/// group are cut together into row shards; both placed round-robin over the backends by their numbers.
/// Immutable but for the blocks; thread-safe as they are.
class ParameterStore {
 public:
  /// `backends` must not be empty. Fails when a device has not enough memory.
  static Result<std::unique_ptr<ParameterStore>> create(ModelSpec model, uint32_t shardCount,
                                                        std::vector<std::shared_ptr<Backend>> backends,
                                                        StoreGroups groups);
  /// Creates a store for a model that is one group, all with one optimizer.
  static Result<std::unique_ptr<ParameterStore>> create(ModelSpec model, uint32_t shardCount,
                                                        std::vector<std::shared_ptr<Backend>> backends,
                                                        const Optimizer& optimizer);

  const ModelSpec& model() const { return model_; }
  const ModelLayout& layout() const { return layout_; }
  const ShardPlan& plan() const { return plan_; }
  size_t groupCount() const { return groups_.optimizers.size(); }
  /// The optimizer that the tensors of a group have now.
  Optimizer optimizer(uint32_t group) const {
    const std::lock_guard lock(optimizersMutex_);
    return groups_.optimizers[group];
  }
  Optimizer optimizerOf(const ParameterBlock& block) const { return optimizer(block.group()); }
  /// Gives a group the numbers of `optimizer`, which has the slots of the group's optimizer. Only while no
  /// update is under way.
  void setOptimizer(uint32_t group, const Optimizer& optimizer);
  /// The rules that the updates to come follow for a table, all row shards together. Rows that are there stay
  /// until one of these takes them out. Thread-safe.
  void setRowRules(uint32_t table, const RowRules& rules);
  /// How much memory all embedding tables together may take from now on. What is there stays.
  void setTableBytesMax(uint64_t bytes) { tableBytes_->setMost(bytes); }
  size_t shardCount() const { return shards_.size(); }
  Shard& shard(size_t index) { return *shards_[index]; }
  const Shard& shard(size_t index) const { return *shards_[index]; }
  size_t rowShardCount() const { return rowShards_.size(); }
  RowShard& rowShard(size_t index) { return *rowShards_[index]; }
  const RowShard& rowShard(size_t index) const { return *rowShards_[index]; }
  /// All blocks by their numbers: first the shards of the arena, then the row shards.
  size_t blockCount() const { return shards_.size() + rowShards_.size(); }
  ParameterBlock& block(size_t index) {
    if (index < shards_.size()) return *shards_[index];
    return *rowShards_[index - shards_.size()];
  }
  const ParameterBlock& block(size_t index) const { return const_cast<ParameterStore*>(this)->block(index); }
  /// For people: "cpu", or the devices joined by ", ".
  std::string describeDevices() const;

  /// Where the arena lies in a memory file; nothing unless all shards lie end to end in one file.
  std::optional<SharedArena> sharedArena() const;
  /// Tells processes that have mapped the arena whether they may read it now. At first they may read it.
  void setSharedReadable(bool readable);

  Lanes makeLanes() const;

  /// Whether the devices of all shards can share memory with other processes.
  bool sharesDeviceMemory() const;
  size_t deviceCount() const { return backends_.size(); }
  /// Backend::shareMemory() of the device with the number that Shard::device() gives.
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
  const std::shared_ptr<TableBytes> tableBytes_ = TableBytes::make(UINT64_MAX);
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::unique_ptr<RowShard>> rowShards_;
};

/// Writes all parameters as one safetensors file, atomically. Blocks; call it when no update runs.
Status saveParameters(Env& env, const std::string& path, ParameterStore& store);

/// Fills a store with another's weights, tensor by tensor, in whatever order each has them. Blocks; while
/// nobody updates either.
Status copyParameters(ParameterStore& from, ParameterStore& to);

/// Fills the store with a file's tensors, matched by name. Blocks; before anybody else uses the
/// store. Fails when a tensor is missing, of another shape, or holds NaN or infinity.
Status loadParameters(const SafetensorsReader& file, ParameterStore& store);

}  // namespace psd

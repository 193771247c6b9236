#include "server/model/make_store.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace psd {
namespace {

// Upper bounds of the memory of a tensor and a shard besides their values: names, places, locks, answers of
// pushes.
constexpr uint64_t kTensorBytes = 512, kShardBytes = 2048;

uint32_t shardsFor(const DaemonConfig& config, const ModelSpec& model, size_t devices) {
  const auto bySize = std::max<uint32_t>(ShardPlan::countFor(ModelLayout(model).totalElements()),
                                         static_cast<uint32_t>(devices));
  return config.shards.value_or(bySize);
}

uint32_t rowShardsOf(const DaemonConfig& config) { return config.tables.rowShards.value_or(config.threads); }

}  // namespace

Status checkLimits(const DaemonConfig& config, const ModelSpec& model, size_t devices) {
  const uint64_t weights = model.parameterCount() * sizeof(float);
  const uint64_t shards = shardsFor(config, model, devices), tensors = model.tensors.size();
  const uint64_t all = weights + tensors * kTensorBytes + shards * kShardBytes;
  if (const uint64_t most = config.limits.modelBytes; most != 0 && all > most) {
    return {ErrorCode::overloaded,
            fmt::format("the model takes {} bytes: {} of weights, {} for its {} tensors and {} shards; "
                        "limits.model_bytes is {}",
                        all, weights, all - weights, tensors, shards, most)};
  }
  PSD_ASSIGN_OR_RETURN(const GroupsOfModel of, assignGroups(model, config.groups));
  const std::set<uint32_t> groups(of.ofTable.begin(), of.ofTable.end());
  const uint64_t rowShards = rowShardsOf(config), tables = model.tables.size();
  const uint64_t empty = rowShards * (tables * RowTable::kEmptyBytes + groups.size() * kEmptyRowShardBytes);
  if (empty <= config.limits.tableBytes) return {};
  return {ErrorCode::overloaded,
          fmt::format("the model's {} tables take {} bytes in {} row shards without any row, and "
                      "limits.table_bytes is {}: raise it, or lower row_shards",
                      tables, empty, rowShards, config.limits.tableBytes)};
}

Result<std::unique_ptr<ParameterStore>> makeStore(const DaemonConfig& config, ModelSpec model,
                                                  const std::vector<std::shared_ptr<Backend>>& backends,
                                                  const std::function<Status(ParameterStore&)>& fill) {
  StoreGroups groups;
  PSD_ASSIGN_OR_RETURN(GroupsOfModel of, assignGroups(model, config.groups));
  groups.groupOfTensor = std::move(of.ofTensor);
  groups.groupOfTable = std::move(of.ofTable);
  groups.rowShards = rowShardsOf(config);
  PSD_ASSIGN_OR_RETURN(const std::vector<TableConfig> tables, assignTables(model, config.tables));
  PSD_RETURN_IF_ERROR(checkRowsFit(model, config.limits.sliceBytes));
  for (const TableConfig& table : tables) groups.rowSteps.push_back(table.rowSteps);
  for (const GroupConfig& group : config.groups) groups.optimizers.push_back(group.optimizer);
  const uint32_t shards = shardsFor(config, model, backends.size());
  PSD_ASSIGN_OR_RETURN(auto store, ParameterStore::create(std::move(model), shards, backends, groups));
  if (fill) PSD_RETURN_IF_ERROR(fill(*store));
  // After `fill`, so that restored rows are kept even if they exceed the limits.
  for (uint32_t i = 0; i < tables.size(); i++) store->setRowRules(i, tables[i].rules);
  store->setTableBytesMax(config.limits.tableBytes);
  return store;
}

}  // namespace psd

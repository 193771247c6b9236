#include "server/model/make_store.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

/// Whether a slice of a pull or a push can hold a row of each table.
Status checkRowsFit(const ModelSpec& model, uint64_t sliceBytes) {
  for (const TableSpec& table : model.tables) {
    const uint64_t bytes = (table.dim + kRowIdFloats + kRowRunFloats) * sizeof(float);
    if (bytes <= sliceBytes) continue;
    return {ErrorCode::invalidArgument,
            fmt::format("a row of table '{}' takes {} bytes with its id, and limits.slice_bytes is {}",
                        printable(table.name), bytes, sliceBytes)};
  }
  return {};
}

}  // namespace

Status checkStore(const DaemonConfig& config, const ModelSpec& model) {
  PSD_RETURN_IF_ERROR(assignGroups(model, config.groups).status());
  PSD_RETURN_IF_ERROR(assignTables(model, config.tables).status());
  return checkRowsFit(model, config.limits.sliceBytes);
}

Result<std::unique_ptr<ParameterStore>> makeStore(const DaemonConfig& config, ModelSpec model,
                                                  const std::vector<std::shared_ptr<Backend>>& backends,
                                                  const std::function<Status(ParameterStore&)>& fill) {
  StoreGroups groups;
  PSD_ASSIGN_OR_RETURN(GroupsOfModel of, assignGroups(model, config.groups));
  groups.groupOfTensor = std::move(of.ofTensor);
  groups.groupOfTable = std::move(of.ofTable);
  groups.rowShards = config.tables.rowShards.value_or(config.threads);
  PSD_ASSIGN_OR_RETURN(const std::vector<TableConfig> tables, assignTables(model, config.tables));
  PSD_RETURN_IF_ERROR(checkRowsFit(model, config.limits.sliceBytes));
  for (const TableConfig& table : tables) groups.rowSteps.push_back(table.rowSteps);
  for (const GroupConfig& group : config.groups) groups.optimizers.push_back(group.optimizer);
  const auto bySize = std::max<uint32_t>(ShardPlan::countFor(ModelLayout(model).totalElements()),
                                         static_cast<uint32_t>(backends.size()));
  PSD_ASSIGN_OR_RETURN(
      auto store, ParameterStore::create(std::move(model), config.shards.value_or(bySize), backends, groups));
  if (fill) PSD_RETURN_IF_ERROR(fill(*store));
  // What was there before stays, even if it is more.
  for (uint32_t i = 0; i < tables.size(); i++) store->setRowRules(i, tables[i].rules);
  store->setTableBytesMax(config.limits.tableBytes);
  return store;
}

}  // namespace psd

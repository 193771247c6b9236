#include "server/config/tables_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/config/globs.h"
#include "server/store/rows/admission_filter.h"

namespace psd {
namespace {

constexpr uint32_t kRowShardsMax = 65536;
constexpr uint64_t kRowsMax = uint64_t{1} << 40;
constexpr uint64_t kUpdatesMax = uint64_t{1} << 39;  // what a row remembers of its last update has 40 bits
constexpr uint64_t kNormPass = 1000;
constexpr double kNormMax = 1e6;
constexpr uint64_t kPushesMax = 255;
constexpr uint64_t kCountersMax = AdmissionFilter::kBlockBytes << AdmissionFilter::kBlockBitsMax;

EvictRule readEvict(ObjectReader in) {
  using By = EvictRule::By;
  EvictRule rule;
  if (!in.has("by")) in.fail("by", "is needed: \"age\", \"least_recent\" or \"norm\"");
  const std::string by = in.choice("by", "age", {"age", "least_recent", "norm"});
  rule.by = by == "age" ? By::age : by == "norm" ? By::norm : By::leastRecent;
  if (rule.by == By::age && !in.has("updates")) {
    in.fail("updates", "is needed: how many updates without a row make it due");
  }
  if (rule.by == By::norm && !in.has("below")) in.fail("below", "is needed: the norm from which a row stays");
  if (rule.by != By::leastRecent) rule.updates = in.integer("updates", kNormPass, 1, kUpdatesMax);
  if (rule.by == By::leastRecent) in.refuse("updates", "goes with by age or norm, not with 'least_recent'");
  if (rule.by == By::norm) {
    rule.below = in.number("below", 0, {.min = 0, .max = kNormMax});
  } else {
    in.refuse("below", "goes with by norm, not with '" + by + "'");
  }
  return rule;
}

AdmitRule readAdmit(ObjectReader in) {
  AdmitRule rule;
  const bool counts = in.has("after_pushes"), draws = in.has("probability");
  if (counts == draws)
    in.fail("", counts ? "holds 'after_pushes' and 'probability'; give only one of the two"
                       : "needs 'after_pushes' or 'probability'");
  if (draws) {
    rule.probability = in.number("probability", 1, {.min = 0, .max = 1});
    in.refuse("counters", "goes with after_pushes, not with 'probability'");
    return rule;
  }
  rule.pushes = static_cast<uint32_t>(in.integer("after_pushes", 2, 2, kPushesMax));
  rule.counters = in.integer("counters", rule.counters, AdmissionFilter::kBlockBytes, kCountersMax);
  return rule;
}

}  // namespace

TablesConfig readTables(ObjectReader& in) {
  TablesConfig config;
  if (in.has("row_shards")) {
    config.rowShards = static_cast<uint32_t>(in.integer("row_shards", 1, 1, kRowShardsMax));
  }
  for (ObjectReader& entry : in.objects("tables")) {
    TableConfig table;
    table.match = readMatch(entry, "the names of embedding tables, as \"item*\"");
    if (entry.has("max_rows")) table.rules.rowsMax = entry.integer("max_rows", 1, 1, kRowsMax);
    if (entry.has("evict")) table.rules.evict = readEvict(entry.object("evict"));
    if (entry.has("admit")) table.rules.admit = readAdmit(entry.object("admit"));
    table.rowSteps = entry.boolean("row_steps", table.rowSteps);
    config.tables.push_back(std::move(table));
  }
  return config;
}

Result<std::vector<TableConfig>> assignTables(const ModelSpec& model, const TablesConfig& config) {
  std::vector<TableConfig> assigned;
  for (const TableSpec& table : model.tables) {
    const auto found = std::ranges::find_if(
        config.tables, [&](const TableConfig& one) { return anyMatches(one.match, table.name); });
    assigned.push_back(found == config.tables.end() ? TableConfig() : *found);
  }
  for (size_t i = 0; i < config.tables.size(); i++) {
    const auto taken = [&](const TableConfig& one) { return one.match == config.tables[i].match; };
    if (std::ranges::any_of(assigned, taken)) continue;
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("tables[{}].match: {} matches no table of model '{}' that the entries before it leave", i,
                    fmt::join(config.tables[i].match, " "), model.name)};
  }
  return assigned;
}

}  // namespace psd

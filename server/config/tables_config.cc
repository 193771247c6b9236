#include "server/config/tables_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/config/globs.h"
#include "common/text/text.h"
#include "common/types/row_ids.h"
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

EvictRule readEvict(ConfigReader in) {
  using By = EvictRule::By;
  EvictRule rule;
  const auto read = [&rule](ConfigReader& options, std::string_view by) {
    rule.by = by == "age" ? By::age : by == "norm" ? By::norm : By::leastRecent;
    if (rule.by != By::leastRecent) rule.updates = kNormPass;
    if (rule.by == By::norm) {
      options.number({"below", "Rows whose values have a smaller Euclidean norm are evicted."}, rule.below,
                     {.min = 0, .max = kNormMax});
      options.require("below", "is needed: the norm from which a row stays");
      options.integer({"updates", "Updates of the row shard in which the table is scanned once."},
                      rule.updates, 1, kUpdatesMax);
      return;
    }
    if (rule.by == By::age) {
      options.integer(
          {"updates",
           "Updates of the row shard without one of the row, after which it is evicted; up to an eighth "
           "more may pass, during which the table is scanned once."},
          rule.updates, 1, kUpdatesMax);
      options.require("updates", "is needed: how many updates without a row make it due");
    } else {
      options.refuse("updates", "requires by age or norm, not 'least_recent'");
    }
    options.refuse("below", "requires by norm, not '" + std::string(by) + "'");
  };
  in.alternatives(
      {"by", "Which rows are evicted."}, "",
      {{"age", "Rows that no push has updated for some time."},
       {"least_recent", "Rows updated longest ago, where `max_rows` or `limits.table_bytes` is reached."},
       {"norm", "Rows with small values."}},
      read);
  return rule;
}

AdmitRule readAdmit(ConfigReader in) {
  AdmitRule rule;
  const bool counts = in.has("after_pushes"), draws = in.has("probability");
  if (counts == draws)
    in.fail("", counts ? "holds 'after_pushes' and 'probability'; give only one of the two"
                       : "needs 'after_pushes' or 'probability'");
  in.rule({{"anyOf", {{{"required", {"after_pushes"}}}, {{"required", {"probability"}}}}},
           {"not", {{"required", {"after_pushes", "probability"}}}},
           {"dependentRequired", {{"counters", {"after_pushes"}}}}});
  if (in.describes() || draws) {
    std::optional<double> probability;
    in.number({"probability",
               "Probability with which an update creates a row, drawn from the table's seed, the id and the "
               "update's number."},
              probability, {.min = 0, .max = 1});
    rule.probability = probability.value_or(1);
    in.refuse("counters", "requires after_pushes, not 'probability'");
    if (!in.describes()) return rule;
  }
  std::optional<uint32_t> pushes;
  in.integer({"after_pushes", "The n-th update with a row's id creates the row."}, pushes, 2, kPushesMax);
  rule.pushes = pushes.value_or(2);
  in.integer({"counters",
              "Bytes, for each of these tables, in which updates of absent rows are counted. They tell a "
              "fifth as many ids apart well; with more ids some rows are created earlier."},
             rule.counters, AdmissionFilter::kBlockBytes, kCountersMax);
  return rule;
}

void readRules(ConfigReader& entry, RowRules& rules) {
  std::optional<uint64_t> rowsMax;
  entry.integer({"max_rows",
                 "Approximate number of rows of each of these tables; each row shard takes an equal share. A "
                 "push that would create more is answered `overloaded`.",
                 Key::kLive},
                rowsMax, 1, kRowsMax);
  rules.rowsMax = rowsMax.value_or(rules.rowsMax);
  if (auto evict =
          entry.optionalObject({"evict",
                                "Rows that are evicted automatically. With it a push that would create more "
                                "than `max_rows` evicts others instead of being refused.",
                                Key::kLive})) {
    rules.evict = readEvict(*evict);
  }
  if (auto admit =
          entry.optionalObject({"admit",
                                "Which rows pushes create; gradients of other rows are discarded, and "
                                "counted in the status. Cannot change with `durability.type` `log`.",
                                Key::kLive})) {
    rules.admit = readAdmit(*admit);
  }
}

}  // namespace

TablesConfig readTables(ConfigReader& in) {
  TablesConfig config;
  in.integer({"row_shards",
              "Parts into which the embedding tables of each group are divided, by hashes of the ids. "
              "Default: `threads`."},
             config.rowShards, 1, kRowShardsMax);
  for (ConfigReader& entry :
       in.objects({"tables",
                   "How embedding tables are held; the first entry that matches a table's name counts."})) {
    TableConfig& table = config.tables.emplace_back();
    entry.match({"match",
                 "Names of tables, as globs: `*`, `?`, `[abc]`. Each entry must match a table of the model."},
                table.match, "the names of embedding tables, as \"item*\"");
    readRules(entry, table.rules);
    entry.boolean(
        {"row_steps",
         "An optimizer that counts steps counts each row's own updates; `false`: those of the row shard."},
        table.rowSteps);
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

Status checkRowsFit(const ModelSpec& model, uint64_t sliceBytes) {
  for (const TableSpec& table : model.tables) {
    const uint64_t bytes = (table.dim + kRowIdFloats + kRowRunFloats) * sizeof(float);
    if (bytes <= sliceBytes) continue;
    return {ErrorCode::invalidArgument,
            fmt::format(
                "limits.slice_bytes: a row of table '{}' takes {} bytes with its id, and slice_bytes is {}",
                printable(table.name), bytes, sliceBytes)};
  }
  return {};
}

}  // namespace psd

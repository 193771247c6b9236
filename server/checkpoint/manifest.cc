#include "server/checkpoint/manifest.h"

#include <algorithm>
#include <bit>
#include <ctime>
#include <memory>

#include <fmt/format.h>

#include "common/checksum/crc32c.h"
#include "common/config/object_reader.h"
#include "common/text/text.h"
#include "common/types/model_layout.h"
#include "server/checkpoint/sealed_json.h"
#include "server/optimizer/optimizer_config.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kConsistencies[] = {"live", "per_shard", "per_group"};
constexpr std::string_view kManifestFormat = "psd checkpoint";
constexpr std::string_view kManifestChecksum = "manifest_crc32c";

std::vector<std::string> slotNames(const Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const Slot& slot : optimizer.slots()) names.emplace_back(slot.name);
  return names;
}

Json pushesJson(const std::vector<AppliedPush>& pushes) {
  Json list = Json::array();
  for (const AppliedPush& push : pushes) {
    list.push_back({{"rank", push.rank.value},
                    {"incarnation", push.incarnation},
                    {"step", push.step.value},
                    {"version", push.version.value},
                    {"staleness", push.staleness},
                    {"before", push.before},
                    {"earlier", push.earlier}});
  }
  return list;
}

Json rangesJson(const PushedRanges& pushed) {
  Json list = Json::array();
  for (const PushedRange& range : pushed.ranges()) {
    list.push_back({{"begin", range.begin}, {"elements", range.count}, {"pushes", pushesJson(range.pushes)}});
  }
  return list;
}

Json fileJson(const ManifestFile& file) {
  return {{"file", file.file}, {"bytes", file.bytes}, {"crc32c", crcText(file.crc)}};
}

/// `units`: the key for the block's size.
Json blockJson(const ManifestBlock& block, std::string_view units) {
  Json entry = {{"begin", block.range.begin},
                {std::string(units), block.range.count},
                {"group", block.range.group},
                {"version", block.version.value},
                {"state_began", block.stateSince.value}};
  if (block.oldestBasis.value > 0) entry["oldest_basis"] = block.oldestBasis.value;
  if (block.pushed.divided()) {
    entry["ranges"] = rangesJson(block.pushed);
  } else {
    const auto& ranges = block.pushed.ranges();
    entry["pushes"] = pushesJson(ranges.empty() ? std::vector<AppliedPush>() : ranges.front().pushes);
  }
  return entry;
}

Json samplesJson(const SavedSamples& samples) {
  Json free = Json::array(), underWay = Json::array();
  for (const auto& [begin, end] : samples.free.ends())
    free.push_back({{"begin", begin}, {"count", end - begin}});
  for (const SavedAssignment& assignment : samples.underWay) {
    Json entry = {{"rank", assignment.process.rank.value}, {"incarnation", assignment.process.incarnation},
                  {"step", assignment.step.value},         {"epoch", assignment.range.epoch},
                  {"begin", assignment.range.begin},       {"count", assignment.range.count}};
    if (assignment.doubtful != SavedAssignment::kAll) entry["doubtful"] = assignment.doubtful;
    underWay.push_back(std::move(entry));
  }
  return {{"plan", samples.terms.number},
          {"epoch_samples", samples.terms.samples},
          {"epochs", samples.terms.epochs},
          {"first_epoch", samples.terms.firstEpoch},
          {"closed", samples.closed},
          {"deals", samples.assignments},
          {"free", free},
          {"under_way", underWay}};
}

constexpr std::string_view kInitials[] = {"zero", "uniform", "normal"};  // RowInitial::Kind

Json tensorsJson(const std::vector<TensorSpec>& tensors) {
  Json json = Json::array();
  for (const TensorSpec& tensor : tensors) {
    json.push_back({{"name", tensor.name}, {"dtype", dtypeName(tensor.dtype)}, {"shape", tensor.shape}});
  }
  return json;
}

Json modelJson(const ModelSpec& model) {
  Json json = {{"name", model.name}, {"tensors", tensorsJson(model.tensors)}};
  if (!model.partition.isWhole()) {
    json["partition"] = {{"index", model.partition.index}, {"of", model.partition.of}};
  }
  if (model.whole) json["whole"] = tensorsJson(*model.whole);
  for (const TableSpec& table : model.tables) {
    json["tables"].push_back({{"name", table.name},
                              {"dim", table.dim},
                              {"initial", kInitials[static_cast<size_t>(table.initial.kind)]},
                              {"scale_bits", std::bit_cast<uint32_t>(table.initial.scale)},
                              {"seed", table.initial.seed}});
  }
  return json;
}

/// Reads a manifest key by key; a missing key is an error too.
class ManifestReader {
 public:
  explicit ManifestReader(ObjectReader in) : in_(std::move(in)) {}

  uint64_t integer(std::string_view key, uint64_t max = UINT64_MAX) {
    need(key);
    return in_.integer(key, 0, 0, max);
  }
  std::string text(std::string_view key) {
    need(key);
    return in_.text(key, "");
  }
  uint32_t crc(std::string_view key) {
    need(key);
    return readCrc(in_, key);
  }
  std::vector<ManifestReader> objects(std::string_view key) {
    need(key);
    std::vector<ManifestReader> readers;
    for (ObjectReader& entry : in_.objects(key)) readers.emplace_back(std::move(entry));
    return readers;
  }
  ManifestReader object(std::string_view key) {
    need(key);
    return ManifestReader(in_.object(key));
  }
  ObjectReader& raw() { return in_; }

 private:
  void need(std::string_view key) {
    if (!in_.has(key)) in_.fail(key, "is missing");
  }
  ObjectReader in_;
};

std::vector<TensorSpec> readTensors(ManifestReader& in, std::string_view key) {
  std::vector<TensorSpec> tensors;
  for (ManifestReader& entry : in.objects(key)) {
    TensorSpec tensor;
    tensor.name = entry.text("name");
    auto dtype = parseDType(entry.text("dtype"));
    if (!dtype.ok()) entry.raw().fail("dtype", dtype.message());
    tensor.dtype = dtype.ok() ? *dtype : DType::f32;
    tensor.shape = entry.raw().integers("shape", {});
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

ModelSpec readModel(ManifestReader in) {
  ModelSpec model;
  model.name = in.text("name");
  model.tensors = readTensors(in, "tensors");
  if (in.raw().has("partition")) {
    ManifestReader partition = in.object("partition");
    model.partition = {static_cast<uint32_t>(partition.integer("index", kPartitionsMax)),
                       static_cast<uint32_t>(partition.integer("of", kPartitionsMax))};
  }
  if (in.raw().has("whole")) {
    model.whole = std::make_shared<const std::vector<TensorSpec>>(readTensors(in, "whole"));
  }
  if (!in.raw().has("tables")) return model;
  for (ManifestReader& entry : in.objects("tables")) {
    TableSpec table;
    table.name = entry.text("name");
    table.dim = static_cast<uint32_t>(entry.integer("dim", kTableDimMax));
    const std::string initial =
        entry.raw().choice("initial", kInitials[1], {std::begin(kInitials), std::end(kInitials)});
    for (size_t i = 0; i < std::size(kInitials); i++) {
      if (kInitials[i] == initial) table.initial.kind = static_cast<RowInitial::Kind>(i);
    }
    table.initial.scale =
        std::bit_cast<float>(static_cast<uint32_t>(entry.integer("scale_bits", UINT32_MAX)));
    table.initial.seed = entry.integer("seed");
    model.tables.push_back(std::move(table));
  }
  return model;
}

AppliedPush readPush(ManifestReader in) {
  AppliedPush push;
  push.rank = {static_cast<uint32_t>(in.integer("rank", UINT32_MAX))};
  push.incarnation = in.integer("incarnation");
  push.step = {in.integer("step")};
  push.version = {in.integer("version")};
  push.staleness = in.integer("staleness");
  push.before = in.integer("before");
  push.earlier = in.raw().integers("earlier", {});
  return push;
}

std::vector<AppliedPush> readPushes(ManifestReader& in) {
  std::vector<AppliedPush> pushes;
  for (ManifestReader& push : in.objects("pushes")) pushes.push_back(readPush(std::move(push)));
  return pushes;
}

SavedSamples readSamples(ManifestReader in) {
  SavedSamples samples;
  samples.terms = {in.integer("plan"), in.integer("epoch_samples"), in.integer("epochs"),
                   in.integer("first_epoch")};
  samples.closed = in.raw().boolean("closed", false);
  samples.assignments = in.integer("deals");
  for (ManifestReader& piece : in.objects("free")) {
    const uint64_t begin = piece.integer("begin"), count = piece.integer("count", UINT64_MAX - begin);
    if (!samples.free.add(begin, count)) piece.raw().fail("begin", "overlaps another one");
  }
  for (ManifestReader& entry : in.objects("under_way")) {
    SavedAssignment assignment;
    assignment.process = {Rank{static_cast<uint32_t>(entry.integer("rank", UINT32_MAX))},
                          entry.integer("incarnation")};
    assignment.step = {entry.integer("step")};
    assignment.range = {entry.integer("epoch"), entry.integer("begin"), entry.integer("count")};
    assignment.doubtful = static_cast<uint32_t>(
        entry.raw().integer("doubtful", SavedAssignment::kAll, 0, SavedAssignment::kAll));
    samples.underWay.push_back(assignment);
  }
  return samples;
}

ManifestFile readFile(ManifestReader& in) {
  ManifestFile file;
  file.file = in.text("file");
  if (file.file.empty() || file.file.find('/') != std::string::npos) {
    in.raw().fail("file", "must be the name of a file in the same folder");
  }
  file.bytes = in.integer("bytes");
  file.crc = in.crc("crc32c");
  return file;
}

/// `units`: the key for the block's size.
ManifestBlock readBlock(ManifestReader& in, std::string_view units, size_t number, size_t groups) {
  ManifestBlock block;
  block.range = {ShardId{static_cast<uint32_t>(number)}, in.integer("begin"), in.integer(units)};
  block.range.group = static_cast<uint32_t>(in.integer("group", groups == 0 ? 0 : groups - 1));
  block.version = {in.integer("version")};
  block.stateSince = {in.raw().integer("state_began", 0, 0, block.version.value)};
  block.oldestBasis = {in.raw().integer("oldest_basis", 0, 0, block.version.value)};
  if (!in.raw().has("ranges")) {
    block.pushed = PushedRanges(block.range.count, readPushes(in));
    return block;
  }
  std::vector<PushedRange> ranges;
  uint64_t end = 0;
  for (ManifestReader& entry : in.objects("ranges")) {
    PushedRange range{entry.integer("begin"), entry.integer("elements"), readPushes(entry)};
    if (range.begin != end || range.count == 0 || range.count > block.range.count - end) {
      entry.raw().fail("begin", "does not start where the previous range ends");
      break;
    }
    end += range.count;
    ranges.push_back(std::move(range));
  }
  if (end != block.range.count) in.raw().fail("ranges", "do not cover the shard");
  block.pushed = PushedRanges(std::move(ranges));
  return block;
}

ManifestShard readShard(ManifestReader in, size_t number, size_t groups) {
  ManifestShard shard;
  static_cast<ManifestBlock&>(shard) = readBlock(in, "elements", number, groups);
  static_cast<ManifestFile&>(shard) = readFile(in);
  return shard;
}

ManifestRowShard readRowShard(ManifestReader in, size_t number, size_t groups, size_t tables) {
  ManifestRowShard shard;
  static_cast<ManifestBlock&>(shard) = readBlock(in, "hash_units", number, groups);
  for (const uint64_t table : in.raw().integers("tables", {})) {
    if (table >= tables) in.raw().fail("tables", "names a table that the model does not have");
    shard.tables.push_back(static_cast<uint32_t>(table));
  }
  shard.rows = in.integer("rows");
  if (in.raw().has("since")) shard.since = Version{in.integer("since", shard.version.value)};
  for (ManifestReader& file : in.objects("files")) shard.files.push_back(readFile(file));
  return shard;
}

ManifestGroup readGroup(ManifestReader in) {
  ManifestGroup group;
  group.policy = in.text("policy");
  ObjectReader optimizer = in.object("optimizer").raw();
  group.optimizer = readOptimizer(optimizer, OptimizerUse::rows);
  if (in.raw().texts("slots", {}) != slotNames(group.optimizer)) {
    in.raw().fail("slots", "are not those of the optimizer");
  }
  return group;
}

Status readRows(ManifestReader& in, Manifest& manifest) {
  if (manifest.model.tables.empty()) return {};
  for (const uint64_t own : in.raw().integers("row_steps", {})) manifest.rowSteps.push_back(own != 0);
  if (manifest.rowSteps.size() != manifest.model.tables.size()) {
    in.raw().fail("row_steps", "must be a number for each table");
  }
  for (ManifestReader& entry : in.objects("row_shards")) {
    const size_t number = manifest.shards.size() + manifest.rowShards.size();
    manifest.rowShards.push_back(
        readRowShard(std::move(entry), number, manifest.groups.size(), manifest.model.tables.size()));
  }
  return {};
}

Status readAll(const Json& document, Manifest& manifest) {
  ManifestReader in{ObjectReader(document)};
  if (in.text("format") != kManifestFormat) in.raw().fail("format", "must be \"psd checkpoint\"");
  if (uint64_t version = in.integer("format_version"); version != kCheckpointFormat) {
    in.raw().fail("format_version", "is " + std::to_string(version) + "; this psd reads version " +
                                        std::to_string(kCheckpointFormat));
  }
  in.text("writer");
  manifest.number = in.integer("number");
  manifest.created = in.text("created");
  const std::string consistency = in.raw().choice("consistency", kConsistencies[0],
                                                  {std::begin(kConsistencies), std::end(kConsistencies)});
  for (size_t i = 0; i < std::size(kConsistencies); i++) {
    if (kConsistencies[i] == consistency) manifest.consistency = static_cast<Consistency>(i);
  }
  manifest.logSegment = in.integer("log_segment");
  manifest.logHistory = in.integer("log_history");
  manifest.model = readModel(in.object("model"));
  for (ManifestReader& group : in.objects("groups")) manifest.groups.push_back(readGroup(std::move(group)));
  if (manifest.groups.empty()) in.raw().fail("groups", "must have at least one");
  for (ManifestReader& entry : in.objects("shards")) {
    manifest.shards.push_back(readShard(std::move(entry), manifest.shards.size(), manifest.groups.size()));
  }
  PSD_RETURN_IF_ERROR(readRows(in, manifest));
  if (in.raw().has("buffers")) {
    ManifestReader buffers = in.object("buffers");
    manifest.buffers = readFile(buffers);
  }
  if (in.raw().has("samples")) manifest.samples = readSamples(in.object("samples"));
  if (in.raw().has("base")) {
    ManifestReader base = in.object("base");
    manifest.base = {base.integer("number"), base.crc("crc32c")};
    if (manifest.base->number >= manifest.number)
      base.raw().fail("number", "is not that of an earlier checkpoint");
  }
  const bool hasIncremental =
      std::ranges::any_of(manifest.rowShards, [](const auto& shard) { return shard.since.has_value(); });
  if (hasIncremental != manifest.base.has_value()) {
    in.raw().fail("base", hasIncremental ? "is missing, but row shards refer to it"
                                         : "is given, but no row shard refers to it");
  }
  in.text(kManifestChecksum);
  PSD_RETURN_IF_ERROR(in.raw().finish());
  return manifest.samples ? SamplePlan::restore(*manifest.samples).status() : Status();
}

/// Whether the row shards of each table partition the hash space as planRowShards() does.
Status checkRowShards(const Manifest& manifest) {
  for (uint32_t table = 0; table < manifest.model.tables.size(); table++) {
    std::vector<ShardRange> ranges;
    for (const ManifestRowShard& shard : manifest.rowShards) {
      if (std::ranges::find(shard.tables, table) != shard.tables.end()) ranges.push_back(shard.range);
    }
    const std::vector<ShardRange> plan = planRowShards(static_cast<uint32_t>(ranges.size()));
    const bool whole =
        !ranges.empty() && std::ranges::equal(ranges, plan, [](const auto& one, const auto& other) {
          return one.begin == other.begin && one.count == other.count;
        });
    if (whole) continue;
    return {ErrorCode::invalidArgument, fmt::format("the row shards do not cover table '{}'",
                                                    printable(manifest.model.tables[table].name))};
  }
  return {};
}

/// Checks the shards, and sets their dtypes.
Status checkPlan(Manifest& manifest) {
  PSD_RETURN_IF_ERROR(validateModel(manifest.model));
  ShardPlan plan;
  for (const ManifestShard& shard : manifest.shards) plan.shards.push_back(shard.range);
  PSD_RETURN_IF_ERROR(plan.validate());
  const uint64_t elements = ModelLayout(manifest.model).totalElements();
  if (plan.totalElements() != elements) {
    return {ErrorCode::invalidArgument, "the shards hold " + std::to_string(plan.totalElements()) +
                                            " elements, the model has " + std::to_string(elements)};
  }
  PSD_RETURN_IF_ERROR(plan.readDtypes(manifest.model));
  for (size_t i = 0; i < plan.shards.size(); i++) manifest.shards[i].range = plan.shards[i];
  return checkRowShards(manifest);
}

}  // namespace

std::string_view consistencyName(Consistency consistency) {
  return kConsistencies[static_cast<size_t>(consistency)];
}

std::string utcNow() { return utcText(std::time(nullptr)); }

std::vector<const ManifestBlock*> blocksOf(const Manifest& manifest) {
  std::vector<const ManifestBlock*> blocks;
  for (const ManifestShard& shard : manifest.shards) blocks.push_back(&shard);
  for (const ManifestRowShard& shard : manifest.rowShards) blocks.push_back(&shard);
  return blocks;
}

ManifestBlock& blockOf(Manifest& manifest, size_t index) {
  if (index < manifest.shards.size()) return manifest.shards[index];
  return manifest.rowShards[index - manifest.shards.size()];
}

std::vector<const ManifestFile*> filesOf(const Manifest& manifest) {
  std::vector<const ManifestFile*> files;
  for (const ManifestShard& shard : manifest.shards) files.push_back(&shard);
  for (const ManifestRowShard& shard : manifest.rowShards) {
    for (const ManifestFile& file : shard.files) files.push_back(&file);
  }
  if (manifest.buffers) files.push_back(&*manifest.buffers);
  return files;
}

std::string formatManifest(const Manifest& manifest) {
  Json out;
  out["format"] = kManifestFormat;
  out["format_version"] = kCheckpointFormat;
  out["writer"] = "psd " PSD_VERSION;
  out["number"] = manifest.number;
  out["created"] = manifest.created;
  if (manifest.base)
    out["base"] = {{"number", manifest.base->number}, {"crc32c", crcText(manifest.base->crc)}};
  out["consistency"] = consistencyName(manifest.consistency);
  out["log_segment"] = manifest.logSegment;
  out["log_history"] = manifest.logHistory;
  out["model"] = modelJson(manifest.model);
  out["groups"] = Json::array();
  for (const ManifestGroup& group : manifest.groups) {
    out["groups"].push_back({{"policy", group.policy},
                             {"optimizer", writeOptimizer(group.optimizer)},
                             {"slots", slotNames(group.optimizer)}});
  }
  out["shards"] = Json::array();
  for (const ManifestShard& shard : manifest.shards) {
    Json entry = blockJson(shard, "elements");
    entry.update(fileJson(shard));
    out["shards"].push_back(std::move(entry));
  }
  if (!manifest.model.tables.empty()) {
    for (const bool own : manifest.rowSteps) out["row_steps"].push_back(own ? 1 : 0);
    out["row_shards"] = Json::array();
  }
  for (const ManifestRowShard& shard : manifest.rowShards) {
    Json entry = blockJson(shard, "hash_units");
    entry["tables"] = shard.tables;
    entry["rows"] = shard.rows;
    if (shard.since) entry["since"] = shard.since->value;
    entry["files"] = Json::array();
    for (const ManifestFile& file : shard.files) entry["files"].push_back(fileJson(file));
    out["row_shards"].push_back(std::move(entry));
  }
  if (manifest.buffers) out["buffers"] = fileJson(*manifest.buffers);
  if (manifest.samples) out["samples"] = samplesJson(*manifest.samples);
  return sealJson(out, kManifestChecksum);
}

Result<Manifest> parseManifest(std::string_view text, const std::string& origin) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "'" + origin + "' is not a manifest that psd can read: " + why};
  };
  const auto document = openSealedJson(text, kManifestChecksum);
  if (!document.ok()) return bad(document.message());
  Manifest manifest;
  if (Status read = readAll(*document, manifest); !read.ok()) return bad(read.message());
  if (Status plan = checkPlan(manifest); !plan.ok()) return bad(plan.message());
  return manifest;
}

}  // namespace psd

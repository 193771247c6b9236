#include "server/checkpoint/manifest.h"

#include <cstdlib>

#include "common/checksum/crc32c.h"
#include "common/config/object_reader.h"
#include "common/types/model_layout.h"
#include "server/checkpoint/sealed_json.h"
#include "server/optimizer/optimizer_config.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kConsistencies[] = {"live", "per_shard", "per_group"};
constexpr std::string_view kManifestFormat = "psd checkpoint";
constexpr std::string_view kManifestChecksum = "manifest_crc32c";
constexpr size_t kChecksumDigits = 8;  // of a shard's file

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

Json samplesJson(const SavedSamples& samples) {
  Json free = Json::array(), underWay = Json::array();
  for (const auto& [begin, end] : samples.free.ends())
    free.push_back({{"begin", begin}, {"count", end - begin}});
  for (const SavedDeal& deal : samples.underWay) {
    Json entry = {{"rank", deal.life.rank.value}, {"incarnation", deal.life.incarnation},
                  {"step", deal.step.value},      {"epoch", deal.range.epoch},
                  {"begin", deal.range.begin},    {"count", deal.range.count}};
    if (deal.doubtful != SavedDeal::kAll) entry["doubtful"] = deal.doubtful;
    underWay.push_back(std::move(entry));
  }
  return {{"plan", samples.terms.number},
          {"epoch_samples", samples.terms.samples},
          {"epochs", samples.terms.epochs},
          {"first_epoch", samples.terms.firstEpoch},
          {"closed", samples.closed},
          {"deals", samples.deals},
          {"free", free},
          {"under_way", underWay}};
}

Json modelJson(const ModelSpec& model) {
  Json tensors = Json::array();
  for (const TensorSpec& tensor : model.tensors) {
    tensors.push_back({{"name", tensor.name}, {"dtype", dtypeName(tensor.dtype)}, {"shape", tensor.shape}});
  }
  return {{"name", model.name}, {"tensors", tensors}};
}

/// Reads a manifest key by key; a missing key is as wrong as one with a wrong value.
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
    const std::string digits = text(key);
    char* end = nullptr;
    const uint64_t value = std::strtoull(digits.c_str(), &end, 16);
    if (digits.size() != kChecksumDigits || *end != '\0') in_.fail(key, "must be eight hexadecimal digits");
    return static_cast<uint32_t>(value);
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

ModelSpec readModel(ManifestReader in) {
  ModelSpec model;
  model.name = in.text("name");
  for (ManifestReader& entry : in.objects("tensors")) {
    TensorSpec tensor;
    tensor.name = entry.text("name");
    auto dtype = parseDType(entry.text("dtype"));
    if (!dtype.ok()) entry.raw().fail("dtype", dtype.message());
    tensor.dtype = dtype.ok() ? *dtype : DType::f32;
    tensor.shape = entry.raw().integers("shape", {});
    model.tensors.push_back(std::move(tensor));
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
  samples.deals = in.integer("deals");
  for (ManifestReader& piece : in.objects("free")) {
    const uint64_t begin = piece.integer("begin"), count = piece.integer("count", UINT64_MAX - begin);
    if (!samples.free.add(begin, count)) piece.raw().fail("begin", "is in two of them");
  }
  for (ManifestReader& entry : in.objects("under_way")) {
    SavedDeal deal;
    deal.life = {Rank{static_cast<uint32_t>(entry.integer("rank", UINT32_MAX))},
                 entry.integer("incarnation")};
    deal.step = {entry.integer("step")};
    deal.range = {entry.integer("epoch"), entry.integer("begin"), entry.integer("count")};
    deal.doubtful =
        static_cast<uint32_t>(entry.raw().integer("doubtful", SavedDeal::kAll, 0, SavedDeal::kAll));
    samples.underWay.push_back(deal);
  }
  return samples;
}

ManifestShard readShard(ManifestReader in, size_t index, size_t groups) {
  ManifestShard shard;
  shard.range = {ShardId{static_cast<uint32_t>(index)}, in.integer("begin"), in.integer("elements")};
  shard.range.group = static_cast<uint32_t>(in.integer("group", groups == 0 ? 0 : groups - 1));
  shard.version = {in.integer("version")};
  shard.stateBegan = {in.raw().integer("state_began", 0, 0, shard.version.value)};
  shard.file = in.text("file");
  if (shard.file.empty() || shard.file.find('/') != std::string::npos) {
    in.raw().fail("file", "must be the name of a file in the same folder");
  }
  shard.bytes = in.integer("bytes");
  shard.crc = in.crc("crc32c");
  if (!in.raw().has("ranges")) {
    shard.pushed = PushedRanges(shard.range.count, readPushes(in));
    return shard;
  }
  std::vector<PushedRange> ranges;
  uint64_t end = 0;
  for (ManifestReader& entry : in.objects("ranges")) {
    PushedRange range{entry.integer("begin"), entry.integer("elements"), readPushes(entry)};
    if (range.begin != end || range.count == 0 || range.count > shard.range.count - end) {
      entry.raw().fail("begin", "does not go on where the range before it ends");
      break;
    }
    end += range.count;
    ranges.push_back(std::move(range));
  }
  if (end != shard.range.count) in.raw().fail("ranges", "are not the whole shard");
  shard.pushed = PushedRanges(std::move(ranges));
  return shard;
}

ManifestGroup readGroup(ManifestReader in) {
  ManifestGroup group;
  group.policy = in.text("policy");
  ObjectReader optimizer = in.object("optimizer").raw();
  group.optimizer = readOptimizer(optimizer);
  if (in.raw().texts("slots", {}) != slotNames(group.optimizer)) {
    in.raw().fail("slots", "are not what the optimizer keeps");
  }
  return group;
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
  if (in.raw().has("samples")) manifest.samples = readSamples(in.object("samples"));
  in.text(kManifestChecksum);
  PSD_RETURN_IF_ERROR(in.raw().finish());
  return manifest.samples ? SamplePlan::restore(*manifest.samples).status() : Status();
}

Status checkPlan(const Manifest& manifest) {
  PSD_RETURN_IF_ERROR(validateModel(manifest.model));
  ShardPlan plan;
  for (const ManifestShard& shard : manifest.shards) plan.shards.push_back(shard.range);
  PSD_RETURN_IF_ERROR(plan.validate());
  const uint64_t elements = ModelLayout(manifest.model).totalElements();
  if (plan.totalElements() == elements) return {};
  return {ErrorCode::invalidArgument, "the shards hold " + std::to_string(plan.totalElements()) +
                                          " elements, the model has " + std::to_string(elements)};
}

}  // namespace

std::string_view consistencyName(Consistency consistency) {
  return kConsistencies[static_cast<size_t>(consistency)];
}

std::string formatManifest(const Manifest& manifest) {
  Json out;
  out["format"] = kManifestFormat;
  out["format_version"] = kCheckpointFormat;
  out["writer"] = "psd " PSD_VERSION;
  out["number"] = manifest.number;
  out["created"] = manifest.created;
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
    Json entry = {{"begin", shard.range.begin},
                  {"elements", shard.range.count},
                  {"group", shard.range.group},
                  {"version", shard.version.value},
                  {"state_began", shard.stateBegan.value},
                  {"file", shard.file},
                  {"bytes", shard.bytes},
                  {"crc32c", crcText(shard.crc)}};
    if (shard.pushed.divided()) {
      entry["ranges"] = rangesJson(shard.pushed);
    } else {
      const auto& ranges = shard.pushed.ranges();
      entry["pushes"] = pushesJson(ranges.empty() ? std::vector<AppliedPush>() : ranges.front().pushes);
    }
    out["shards"].push_back(std::move(entry));
  }
  if (manifest.samples) out["samples"] = samplesJson(*manifest.samples);
  return sealJson(out, kManifestChecksum);
}

Result<Manifest> parseManifest(std::string_view text, const std::string& origin) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "'" + origin + "' is no manifest that psd can read: " + why};
  };
  const auto document = openSealedJson(text, kManifestChecksum);
  if (!document.ok()) return bad(document.message());
  Manifest manifest;
  if (Status read = readAll(*document, manifest); !read.ok()) return bad(read.message());
  if (Status plan = checkPlan(manifest); !plan.ok()) return bad(plan.message());
  return manifest;
}

}  // namespace psd

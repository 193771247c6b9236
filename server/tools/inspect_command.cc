#include "server/tools/inspect_command.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/config/json_file.h"
#include "common/patch/version_patch.h"
#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "common/types/bridge.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/replay.h"
#include "server/checkpoint/whole.h"
#include "server/publish/shared_version_file.h"
#include "server/publish/version_file.h"
#include "server/tools/saved_files.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

/// The result, human-readable and as JSON. The JSON's fields are documented in docs/reference/status.md.
struct Findings {
  std::string text;
  Json json;
};

Json tensorsJson(const ModelSpec& model) {
  Json tensors = Json::array();
  for (const TensorSpec& tensor : model.tensors) {
    tensors.push_back({{"name", tensor.name}, {"dtype", dtypeName(tensor.dtype)}, {"shape", tensor.shape}});
  }
  return tensors;
}

Json checkpointJson(const Checkpoint& checkpoint) {
  const Manifest& manifest = checkpoint.manifest;
  Json json = {
      {"kind", "checkpoint"}, {"manifest", Json::parse(formatManifest(manifest))}, {"bases", Json::array()}};
  for (const Checkpoint& base : checkpoint.bases) json["bases"].push_back(base.manifest.number);
  json["signature"] = fmt::format("{:016x}", manifest.model.signature());
  json["samples_done"] = json["samples_under_way"] = nullptr;
  if (manifest.samples) {
    const SamplePlan plan = SamplesReplay(manifest).finish();
    json["samples_done"] = plan.doneCount();
    json["samples_under_way"] = plan.underWayCount();
  }
  return json;
}

/// `first`, `last`: numbers of its first and last record; 0: it has none.
Json segmentJson(const std::string& file, const SegmentContent& content, uint64_t first, uint64_t last) {
  Json json = {{"kind", "segment"},
               {"file", file},
               {"segment", nullptr},
               {"history", nullptr},
               {"signature", nullptr},
               {"records", 0},
               {"first_record", nullptr},
               {"last_record", nullptr},
               {"bytes", content.fileBytes},
               {"whole_bytes", content.wholeBytes},
               {"error", nullptr}};
  if (!content.damage.empty()) json["error"] = content.damage;
  if (!content.header) return json;
  json["segment"] = content.header->segment;
  json["history"] = fmt::format("{:016x}", content.header->history);
  json["signature"] = fmt::format("{:016x}", content.header->signature);
  json["records"] = content.nextRecord - content.header->firstRecord;
  if (first != 0) {
    json["first_record"] = first;
    json["last_record"] = last;
  }
  return json;
}

std::string describeModel(const ModelSpec& model) {
  std::string out = fmt::format("model      {}, {} parameters in {} tensors, signature {:016x}\n", model.name,
                                model.parameterCount(), model.tensors.size(), model.signature());
  for (const TensorSpec& tensor : model.tensors) out += "  " + tensor.toString() + "\n";
  for (const TableSpec& table : model.tables) out += "  " + table.toString() + "\n";
  return out;
}

void describePushes(const PushedRanges& pushed, std::string& out) {
  for (const PushedRange& range : pushed.ranges()) {
    if (pushed.divided()) {
      out += fmt::format("  {} to {} of the shard\n", range.begin, range.begin + range.count);
    }
    for (const AppliedPush& push : range.pushes) {
      out += fmt::format("  {}, incarnation {:016x}: step {} made version {}\n", rankText(push.rank),
                         push.incarnation, push.step.value, push.version.value);
    }
  }
}

Status inspectCheckpoint(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, openCheckpoint(env, path));
  const Manifest& manifest = checkpoint.manifest;
  out.json = checkpointJson(checkpoint);
  out.text += fmt::format("checkpoint {} of {}, consistency {}, all checksums valid\n", manifest.number,
                          manifest.created, consistencyName(manifest.consistency));
  if (manifest.base) {
    std::string chain;
    for (const Checkpoint& base : checkpoint.bases) chain += fmt::format("{}, ", base.manifest.number);
    out.text += fmt::format("base       checkpoint {}: the rows are those of {}{} together\n",
                            manifest.base->number, chain, manifest.number);
  }
  out.text += describeModel(manifest.model);
  for (const ManifestGroup& group : manifest.groups) {
    out.text += fmt::format("group      policy {}, optimizer {}\n", group.policy, group.optimizer.describe());
  }
  for (const ManifestShard& shard : manifest.shards) {
    out.text += fmt::format("shard {}    elements {} to {}, version {}, {}, {} bytes, crc32c {:08x}\n",
                            shard.range.id.value, shard.range.begin, shard.range.begin + shard.range.count,
                            shard.version.value, shard.file, shard.bytes, shard.crc);
    describePushes(shard.pushed, out.text);
  }
  for (const ManifestRowShard& shard : manifest.rowShards) {
    uint64_t bytes = 0;
    for (const ManifestFile& file : shard.files) bytes += file.bytes;
    out.text += fmt::format(
        "row shard {}  hash units {} to {}, version {}, {} rows{} in {} file(s), {} bytes\n",
        shard.range.id.value, shard.range.begin, shard.range.begin + shard.range.count, shard.version.value,
        shard.rows, shard.since ? fmt::format(" that changed since version {}", shard.since->value) : "",
        shard.files.size(), bytes);
    describePushes(shard.pushed, out.text);
  }
  if (manifest.samples) {
    const PlanTerms& terms = manifest.samples->terms;
    const SamplePlan plan = SamplesReplay(manifest).finish();
    out.text += fmt::format("samples    {} epochs of {}: {} done, {} assigned\n", terms.epochs, terms.samples,
                            plan.doneCount(), plan.underWayCount());
  }
  if (manifest.logSegment != 0)
    out.text += fmt::format("log        continues in segment {}\n", manifest.logSegment);
  return {};
}

Result<SegmentContent> showSegment(Env& env, const std::string& path, Findings& out) {
  uint64_t first = 0, last = 0;
  PSD_ASSIGN_OR_RETURN(SegmentContent content, readSegment(env, path, [&](const LogRecord& record) {
                         if (first == 0) first = record.number;
                         last = record.number;
                         return Status();
                       }));
  if (!content.header) {
    out.text += fmt::format("'{}' has no complete header\n", path);
    out.json = segmentJson(nameIn(path), content, first, last);
    return content;
  }
  out.text += fmt::format("segment {} of history {:016x}, model signature {:016x}, {} records{}\n",
                          content.header->segment, content.header->history, content.header->signature,
                          content.nextRecord - content.header->firstRecord,
                          first == 0 ? "" : fmt::format(" ({} to {})", first, last));
  out.json = segmentJson(nameIn(path), content, first, last);
  const uint64_t rest = content.fileBytes - content.wholeBytes;
  if (rest > 0) out.text += fmt::format("  its last {} bytes are not a complete record\n", rest);
  return content;
}

Status inspectSegment(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const SegmentContent content, showSegment(env, path, out));
  if (!content.damage.empty()) return damagedSegment(path, content.damage);
  if (content.header) return {};
  return {ErrorCode::io, "'" + path + "' is not a log segment, or its header is truncated"};
}

Status inspectTensors(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const SafetensorsReader reader,
                       SafetensorsReader::open(env, path, SafetensorsReader::Takes::floatsAndIntegers));
  out.json = {{"kind", "safetensors"}, {"tensors", tensorsJson(reader.model())}, {"unread", Json::array()}};
  out.text += "safetensors file\n" + describeModel(reader.model());
  for (const SafetensorsEntry& buffer : reader.buffers()) {
    out.json["buffers"].push_back({{"name", buffer.name}, {"dtype", buffer.dtype}, {"shape", buffer.shape}});
    out.text += fmt::format("  {} is a buffer\n", buffer.toString());
  }
  for (const auto& [entry, why] : reader.unread()) {
    out.json["unread"].push_back(
        {{"name", entry.name}, {"dtype", entry.dtype}, {"shape", entry.shape}, {"why", why}});
    out.text += fmt::format("  {} is not read: {}\n", entry.toString(), why);
  }
  return {};
}

/// A verified version, in place of what `out` has.
void describeVersion(const VersionHeader& version, Findings& out) {
  const VersionInfo& info = version.info;
  out.json.update(Json{{"version", info.number},
                       {"history", fmt::format("{:016x}", info.history)},
                       {"step", info.step},
                       {"created", info.created},
                       {"moment", momentName(info.moment)},
                       {"bytes", info.bytes},
                       {"map", nullptr},
                       {"tensors", Json::array()}});
  if (!version.map.empty()) out.json["map"] = version.map;
  const std::string part = info.parts == 0 ? "" : fmt::format("part {} of {}, ", info.part + 1, info.parts);
  out.text += fmt::format("version {} of {}, {}history {:016x}, step {}, {}, all checksums valid\n",
                          info.number, info.created, part, info.history, info.step, momentName(info.moment));
  for (const SafetensorsEntry& tensor : version.tensors) {
    out.json["tensors"].push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    out.text += "  " + tensor.toString() + "\n";
  }
}

/// The first bytes of a file, at most `count`.
Result<std::vector<std::byte>> startOf(Env& env, const std::string& path, uint64_t count) {
  PSD_ASSIGN_OR_RETURN(const std::shared_ptr<ReadableFile> file, env.open(path));
  std::vector<std::byte> start(std::min(file->size(), count));
  PSD_RETURN_IF_ERROR(file->read(0, start));
  return start;
}

/// Of `psd follow --shared`; returns whether the file is one.
Result<bool> inspectShared(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const std::vector<std::byte> start, startOf(env, path, 8));
  if (!isSharedVersionFile(start)) return false;
  PSD_ASSIGN_OR_RETURN(const std::optional<VersionHeader> shared, readSharedVersion(env, path));
  out.json = {{"kind", "shared_versions"}, {"version", nullptr}};
  out.text += "shared-memory file of psd follow\n";
  if (shared) {
    describeVersion(*shared, out);
  } else {
    out.text += "no version yet\n";
  }
  return true;
}

Status inspectVersion(Env& env, const std::string& path, Findings& out) {
  out.json = {{"kind", "version"}, {"version", nullptr}};
  PSD_ASSIGN_OR_RETURN(const VersionHeader header, verifyVersionFile(env, path));
  describeVersion(header, out);
  return {};
}

/// A patch between published versions; returns whether the file is one.
Result<bool> inspectPatch(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const std::vector<std::byte> start, startOf(env, path, kPatchHeadBytes));
  if (start.size() < kPatchHeadBytes || !peekPatch(std::span<const std::byte, kPatchHeadBytes>(start))) {
    return false;
  }
  PSD_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, startOf(env, path, UINT64_MAX));
  const auto patch = VersionPatch::read(bytes);
  if (!patch.ok()) return Error{patch.error().code, quotedPath(path) + ": " + patch.message()};
  const VersionInfo& to = patch->header().info;
  out.json = {{"kind", "patch"},
              {"from", patch->from()},
              {"to", to.number},
              {"history", fmt::format("{:016x}", to.history)},
              {"bytes", bytes.size()}};
  out.text += fmt::format("patch from version {} to version {} of history {:016x}, checksum valid\n",
                          patch->from(), to.number, to.history);
  return true;
}

/// The folder of a daemon's published versions.
Status inspectVersions(Env& env, const std::string& path, const std::vector<uint64_t>& numbers,
                       Findings& out) {
  out.json = {{"kind", "versions"}, {"versions", Json::array()}};
  Status worst;
  for (const uint64_t number : numbers) {
    Findings version;
    const Status inspected = inspectVersion(env, versionPath(path, number), version);
    if (!inspected.ok()) {
      worst = inspected;
      version.text = fmt::format("version {}: {}\n", number, inspected.message());
      version.json = {{"kind", "version"}, {"version", number}};
    }
    version.json["error"] = inspected.ok() ? Json() : Json(inspected.message());
    out.text += version.text.substr(0, version.text.find('\n') + 1);
    out.json["versions"].push_back(std::move(version.json));
  }
  return worst;
}

Status inspectDeparted(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const std::optional<Departed> departed, readDeparted(env, path));
  if (!departed) return {};
  std::string ranks;
  for (const Rank rank : departed->ranks) ranks += (ranks.empty() ? " (" : ", ") + std::to_string(rank.value);
  if (!ranks.empty()) ranks += ")";
  out.json = {{"kind", "departed"}, {"world_size", departed->worldSize}, {"ranks", Json::array()}};
  for (const Rank rank : departed->ranks) out.json["ranks"].push_back(rank.value);
  out.text += fmt::format("{}: {} of {} ranks have come and gone{}\n", kDepartedName, departed->ranks.size(),
                          departed->worldSize, ranks);
  return {};
}

Status inspectWhole(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const std::optional<WholeCheckpoint> whole, readWhole(env, path));
  if (!whole) return {};
  out.text += fmt::format(
      "{}: of {}, checkpoint of the whole model: {}\n", kWholeName, whole->created,
      joined(whole->parts, ", ", [](const CheckpointRef& part) { return std::to_string(part.number); }));
  out.json["created"] = whole->created;
  out.json["checkpoints"] = Json::array();
  for (const CheckpointRef& part : whole->parts) out.json["checkpoints"].push_back(part.number);
  return {};
}

/// Describes one checkpoint of a folder. Returns whether it is complete; if so, adds to `logFrom` the segment
/// where its log continues.
Result<bool> showCheckpoint(Env& env, const std::string& folder, uint64_t number, Findings& out,
                            std::map<uint64_t, uint64_t>& logFrom) {
  const std::string path = checkpointPath(folder, number);
  Json& entry = out.json["checkpoints"].emplace_back(Json{{"number", number},
                                                          {"whole", false},
                                                          {"created", nullptr},
                                                          {"version", nullptr},
                                                          {"base", nullptr},
                                                          {"error", nullptr}});
  PSD_ASSIGN_OR_RETURN(const bool finished, isCheckpoint(env, path));
  if (!finished) {
    out.text += fmt::format("checkpoint {} is incomplete and ignored\n", number);
    entry["error"] = "unfinished";
    return false;
  }
  const auto opened = openCheckpoint(env, path);
  if (!opened.ok()) {
    out.text += fmt::format("checkpoint {}: {}\n", number, opened.message());
    entry["error"] = opened.message();
    return opened.error();
  }
  const Manifest& manifest = opened->manifest;
  if (manifest.logSegment != 0) logFrom.try_emplace(manifest.logHistory, manifest.logSegment);
  const uint64_t version = blocksOf(manifest).front()->version.value;
  out.text += fmt::format("checkpoint {} of {}, shard 0 at version {}, whole{}\n", number, manifest.created,
                          version, manifest.base ? fmt::format(", based on {}", manifest.base->number) : "");
  entry["whole"] = true;
  entry["created"] = manifest.created;
  entry["version"] = version;
  if (manifest.base) entry["base"] = manifest.base->number;
  return true;
}

Status inspectFolder(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env, path, false));
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(path));
  out.json = {{"kind", "folder"},          {"checkpoints", Json::array()},
              {"segments", Json::array()}, {"log_errors", Json::array()},
              {"departed", nullptr},       {"whole_model", nullptr}};
  Status worst;
  bool whole = false;
  std::map<uint64_t, uint64_t> logFrom;  // by history: the segment that continues its oldest checkpoint
  for (const uint64_t number : numbers) {
    const auto shown = showCheckpoint(env, path, number, out, logFrom);
    if (!shown.ok()) worst = shown.status();
    whole = whole || (shown.ok() && *shown);
  }
  for (const std::string& name : names) {
    if (!segmentOf(name)) continue;
    Findings segment;
    const auto shown = showSegment(env, path + "/" + name, segment);
    if (!shown.ok()) worst = shown.status();
    out.text += segment.text;
    out.json["segments"].push_back(shown.ok() ? std::move(segment.json)
                                              : Json{{"file", name}, {"error", shown.message()}});
  }
  // Read like a daemon does: only this shows whether the records are consecutive across segments.
  for (const auto& [history, from] : logFrom) {
    const auto read = readLog(env, path, history, from, [](const LogRecord&) { return Status(); });
    if (read.ok()) continue;
    out.text += fmt::format("log        {}\n", read.message());
    out.json["log_errors"].push_back(read.message());
    worst = read.status();
  }
  Findings departed;
  if (Status status = inspectDeparted(env, path, departed); !status.ok()) worst = status;
  out.text += departed.text;
  if (!departed.json.is_null()) out.json["departed"] = std::move(departed.json);
  Findings together;
  if (Status status = inspectWhole(env, path, together); !status.ok()) worst = status;
  out.text += together.text;
  if (!together.json.is_null()) out.json["whole_model"] = std::move(together.json);
  return worst.ok() && !whole ? noCheckpointIn(path) : worst;
}

Status inspectAnything(Env& env, const std::string& path, Findings& out) {
  PSD_ASSIGN_OR_RETURN(const bool named, isCheckpoint(env, path));
  if (named) return inspectCheckpoint(env, path, out);
  if (env.list(path).ok()) {
    PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, listVersions(env, path));
    return versions.empty() ? inspectFolder(env, path, out) : inspectVersions(env, path, versions, out);
  }
  const std::string name = nameIn(path);
  if (name == kManifestName) return inspectCheckpoint(env, folderOf(path), out);
  if (name == kDepartedName) return inspectDeparted(env, folderOf(path), out);
  if (segmentOf(name)) return inspectSegment(env, path, out);
  PSD_ASSIGN_OR_RETURN(const bool shared, inspectShared(env, path, out));
  if (shared) return {};
  PSD_ASSIGN_OR_RETURN(const bool patch, inspectPatch(env, path, out));
  if (patch) return {};
  return readVersionHeader(env, path).ok() ? inspectVersion(env, path, out) : inspectTensors(env, path, out);
}

}  // namespace

Status inspect(Env& env, const std::string& path, bool json) {
  Findings found;
  Status inspected = checkExists(env, path);
  if (inspected.ok()) {
    inspected = retryBesideDaemon(env, path, [&] {
      found = {};
      return inspectAnything(env, path, found);
    });
  }
  if (json) {
    Json document = {{"path", path}, {"kind", nullptr}, {"error", nullptr}};
    if (found.json.is_object()) document.update(found.json);
    if (!inspected.ok()) document["error"] = inspected.message();
    found.text = jsonText(document) + "\n";
  }
  std::fputs(found.text.c_str(), stdout);
  return inspected;
}

}  // namespace psd

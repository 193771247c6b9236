#include "server/daemon/file_commands.h"

#include <cstdio>
#include <map>

#include <fmt/format.h>

#include "common/safetensors/safetensors.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/replay.h"

namespace psd {
namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

bool isCheckpoint(Env& env, const std::string& path) {
  return env.exists(path + "/" + std::string(kManifestName));
}

Error noCheckpointIn(const std::string& folder) {
  return {ErrorCode::io, "there is no whole checkpoint in '" + folder + "'"};
}

/// Every command's word for a path at which there is nothing.
Status checkExists(Env& env, const std::string& path) {
  if (env.exists(path)) return {};
  return {ErrorCode::io, "there is no '" + path + "'"};
}

std::string nameIn(const std::string& path) { return path.substr(path.rfind('/') + 1); }

/// The checkpoint that `path` names, or the newest whole one in it.
Result<Checkpoint> checkpointAt(Env& env, const std::string& path) {
  if (isCheckpoint(env, path)) return openCheckpoint(env, path);
  if (nameIn(path) == kManifestName) return openCheckpoint(env, folderOf(path));
  if (!env.list(path).ok()) {
    return Error{ErrorCode::io, "'" + path + "' is a file; expected a checkpoint or a folder of them"};
  }
  PSD_ASSIGN_OR_RETURN(NewestCheckpoint newest, newestCheckpoint(env, path));
  for (const NewestCheckpoint::Damaged& damaged : newest.damaged) {
    print("passed over a checkpoint: " + damaged.why.message + "\n");
  }
  if (!newest.checkpoint) return noCheckpointIn(path);
  return std::move(*newest.checkpoint);
}

std::string describeModel(const ModelSpec& model) {
  std::string out = fmt::format("model      {}, {} parameters in {} tensors, signature {:016x}\n", model.name,
                                model.parameterCount(), model.tensors.size(), model.signature());
  for (const TensorSpec& tensor : model.tensors) out += "  " + tensor.toString() + "\n";
  return out;
}

Status inspectCheckpoint(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, openCheckpoint(env, path));
  const Manifest& manifest = checkpoint.manifest;
  std::string out = fmt::format("checkpoint {} of {}, consistency {}, all checksums right\n", manifest.number,
                                manifest.created, consistencyName(manifest.consistency));
  out += describeModel(manifest.model);
  for (const ManifestGroup& group : manifest.groups) {
    out += fmt::format("group      policy {}, optimizer {}\n", group.policy, group.optimizer.describe());
  }
  for (const ManifestShard& shard : manifest.shards) {
    out += fmt::format("shard {}    elements {} to {}, version {}, {}, {} bytes, crc32c {:08x}\n",
                       shard.range.id.value, shard.range.begin, shard.range.begin + shard.range.count,
                       shard.version.value, shard.file, shard.bytes, shard.crc);
    for (const AppliedPush& push : shard.pushes) {
      out += fmt::format("  rank {}, incarnation {:016x}: step {} made version {}\n", push.rank.value,
                         push.incarnation, push.step.value, push.version.value);
    }
  }
  if (manifest.samples) {
    const PlanTerms& terms = manifest.samples->terms;
    const SamplePlan plan = SamplesReplay(manifest).finish();
    out += fmt::format("samples    {} epochs of {}: {} are done, {} under way\n", terms.epochs, terms.samples,
                       plan.doneCount(), plan.underWayCount());
  }
  if (manifest.logSegment != 0) out += fmt::format("log        goes on in segment {}\n", manifest.logSegment);
  print(out);
  return {};
}

Result<SegmentContent> showSegment(Env& env, const std::string& path) {
  uint64_t first = 0, last = 0;
  PSD_ASSIGN_OR_RETURN(SegmentContent content, readSegment(env, path, [&](const LogRecord& record) {
                         if (first == 0) first = record.number;
                         last = record.number;
                         return Status();
                       }));
  if (!content.header) {
    print(fmt::format("'{}' has no whole header\n", path));
    return content;
  }
  print(fmt::format("segment {} of history {:016x}, model signature {:016x}, {} records{}\n",
                    content.header->segment, content.header->history, content.header->signature,
                    content.nextRecord - content.header->firstRecord,
                    first == 0 ? "" : fmt::format(" ({} to {})", first, last)));
  const uint64_t rest = content.fileBytes - content.wholeBytes;
  if (rest > 0) print(fmt::format("  its last {} bytes are no whole record\n", rest));
  return content;
}

Status inspectSegment(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const SegmentContent content, showSegment(env, path));
  if (!content.damage.empty()) return damagedSegment(path, content.damage);
  if (content.header) return {};
  return {ErrorCode::io, "'" + path + "' is no segment of a log, or cut off in its header"};
}

Status inspectTensors(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const SafetensorsReader reader, SafetensorsReader::open(env, path));
  print("safetensors file\n" + describeModel(reader.model()));
  return {};
}

Status inspectDeparted(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::optional<Departed> departed, readDeparted(env, path));
  if (!departed) return {};
  std::string ranks;
  for (const Rank rank : departed->ranks) ranks += (ranks.empty() ? " (" : ", ") + std::to_string(rank.value);
  if (!ranks.empty()) ranks += ")";
  print(fmt::format("{}: {} of {} ranks have come and gone{}\n", kDepartedName, departed->ranks.size(),
                    departed->worldSize, ranks));
  return {};
}

Status inspectFolder(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env, path, false));
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(path));
  Status worst;
  bool whole = false;
  std::map<uint64_t, uint64_t> logFrom;  // of each history: where its oldest whole checkpoint goes on
  for (uint64_t number : numbers) {
    const std::string folder = checkpointPath(path, number);
    if (!isCheckpoint(env, folder)) {
      print(fmt::format("checkpoint {} is unfinished and counts for nothing\n", number));
      continue;
    }
    auto opened = openCheckpoint(env, folder);
    if (opened.ok()) {
      whole = true;
      const Manifest& manifest = opened->manifest;
      if (manifest.logSegment != 0) logFrom.try_emplace(manifest.logHistory, manifest.logSegment);
      print(fmt::format("checkpoint {} of {}, shard 0 at version {}, whole\n", number, manifest.created,
                        manifest.shards[0].version.value));
    } else {
      print(fmt::format("checkpoint {}: {}\n", number, opened.message()));
      worst = opened.status();
    }
  }
  for (const std::string& name : names) {
    if (!segmentOf(name)) continue;
    if (auto shown = showSegment(env, path + "/" + name); !shown.ok()) worst = shown.status();
  }
  // As a daemon would read it: only there it shows whether all of the log follows on what is before it.
  for (const auto& [history, from] : logFrom) {
    const auto read = readLog(env, path, history, from, [](const LogRecord&) { return Status(); });
    if (read.ok()) continue;
    print(fmt::format("log        {}\n", read.message()));
    worst = read.status();
  }
  if (Status status = inspectDeparted(env, path); !status.ok()) worst = status;
  return worst.ok() && !whole ? noCheckpointIn(path) : worst;
}

}  // namespace

Status exportModel(Env& env, const std::string& path, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, checkpointAt(env, path));
  PSD_RETURN_IF_ERROR(exportCheckpoint(env, checkpoint, to));
  print(fmt::format("wrote model '{}' of checkpoint {} to '{}'\n", checkpoint.manifest.model.name,
                    checkpoint.manifest.number, to));
  return {};
}

Status inspect(Env& env, const std::string& path) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  if (isCheckpoint(env, path)) return inspectCheckpoint(env, path);
  if (env.list(path).ok()) return inspectFolder(env, path);
  const std::string name = nameIn(path);
  if (name == kManifestName) return inspectCheckpoint(env, folderOf(path));
  if (name == kDepartedName) return inspectDeparted(env, folderOf(path));
  if (segmentOf(name)) return inspectSegment(env, path);
  return inspectTensors(env, path);
}

Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkExists(env, folder));
  const bool oneCheckpoint = isCheckpoint(env, folder);
  if (oneCheckpoint || !env.list(folder).ok()) {
    return {ErrorCode::io, "'" + folder + "' is " + (oneCheckpoint ? "one checkpoint" : "a file") +
                               "; expected the folder with checkpoints and log, durability.path"};
  }
  PSD_ASSIGN_OR_RETURN(const auto store,
                       rebuild(env, folder, until ? std::optional(Version{*until}) : std::nullopt));
  std::string versions;
  for (size_t i = 0; i < store->shardCount(); i++) {
    versions += (i == 0 ? "" : ", ") + std::to_string(store->shard(i).version().value);
  }
  print(fmt::format("model '{}', shards at update {}\n", store->model().name, versions));
  if (to.empty()) return {};
  PSD_RETURN_IF_ERROR(saveParameters(env, to, *store));
  print(fmt::format("wrote it to '{}'\n", to));
  return {};
}

}  // namespace psd

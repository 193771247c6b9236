#include "server/daemon/file_commands.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

#include <fmt/format.h>

#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/replay.h"

namespace psd {
namespace {

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

Result<bool> isCheckpoint(Env& env, const std::string& path) {
  return env.exists(path + "/" + std::string(kManifestName));
}

Error noCheckpointIn(const std::string& folder) {
  return {ErrorCode::io, "there is no whole checkpoint in '" + folder + "'"};
}

/// Every command's word for a path at which there is nothing.
Status checkExists(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (there) return {};
  return {ErrorCode::io, "there is no " + quotedPath(path)};
}

std::string nameIn(const std::string& path) { return path.substr(path.rfind('/') + 1); }

constexpr int kLooksMost = 20;

/// What a daemon that is at work removes from its folder in time: finished checkpoints and segments of the
/// log.
std::set<std::string> removableIn(Env& env, const std::string& folder) {
  std::set<std::string> out;
  const auto names = env.list(folder);
  if (!names.ok()) return out;
  for (const std::string& name : *names) {
    const auto finished = isCheckpoint(env, folder + "/" + name);
    if (segmentOf(name) || (finished.ok() && *finished)) out.insert(name);
  }
  return out;
}

/// `look` fails where a daemon removes what it is reading: then it looks again.
Status besideDaemon(Env& env, const std::string& folder, const std::function<Status()>& look) {
  for (int looks = 1;; ++looks) {
    const std::set<std::string> before = removableIn(env, folder);
    const Status status = look();
    if (status.ok() || looks == kLooksMost) return status;
    const std::set<std::string> after = removableIn(env, folder);
    if (std::includes(after.begin(), after.end(), before.begin(), before.end())) return status;
  }
}

/// The checkpoint that `path` names, or the newest whole one in it. `out`: what there is to say.
Result<Checkpoint> checkpointAt(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const bool named, isCheckpoint(env, path));
  if (named) return openCheckpoint(env, path);
  if (nameIn(path) == kManifestName) return openCheckpoint(env, folderOf(path));
  if (!env.list(path).ok()) {
    return Error{ErrorCode::io, "'" + path + "' is a file; expected a checkpoint or a folder of them"};
  }
  PSD_ASSIGN_OR_RETURN(NewestCheckpoint newest, newestCheckpoint(env, path));
  for (const NewestCheckpoint::Damaged& damaged : newest.damaged) {
    out += "passed over a checkpoint: " + damaged.why.message + "\n";
  }
  if (!newest.checkpoint) return noCheckpointIn(path);
  return std::move(*newest.checkpoint);
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
      out += fmt::format("  rank {}, incarnation {:016x}: step {} made version {}\n", push.rank.value,
                         push.incarnation, push.step.value, push.version.value);
    }
  }
}

Status inspectCheckpoint(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, openCheckpoint(env, path));
  const Manifest& manifest = checkpoint.manifest;
  out += fmt::format("checkpoint {} of {}, consistency {}, all checksums right\n", manifest.number,
                     manifest.created, consistencyName(manifest.consistency));
  if (manifest.base) {
    std::string chain;
    for (const Checkpoint& base : checkpoint.bases) chain += fmt::format("{}, ", base.manifest.number);
    out += fmt::format("base       goes on from checkpoint {}: the rows are those of {}{} together\n",
                       manifest.base->number, chain, manifest.number);
  }
  out += describeModel(manifest.model);
  for (const ManifestGroup& group : manifest.groups) {
    out += fmt::format("group      policy {}, optimizer {}\n", group.policy, group.optimizer.describe());
  }
  for (const ManifestShard& shard : manifest.shards) {
    out += fmt::format("shard {}    elements {} to {}, version {}, {}, {} bytes, crc32c {:08x}\n",
                       shard.range.id.value, shard.range.begin, shard.range.begin + shard.range.count,
                       shard.version.value, shard.file, shard.bytes, shard.crc);
    describePushes(shard.pushed, out);
  }
  for (const ManifestRowShard& shard : manifest.rowShards) {
    uint64_t bytes = 0;
    for (const ManifestFile& file : shard.files) bytes += file.bytes;
    out += fmt::format("row shard {}  hash units {} to {}, version {}, {} rows{} in {} file(s), {} bytes\n",
                       shard.range.id.value, shard.range.begin, shard.range.begin + shard.range.count,
                       shard.version.value, shard.rows,
                       shard.since ? fmt::format(" that changed since version {}", shard.since->value) : "",
                       shard.files.size(), bytes);
    describePushes(shard.pushed, out);
  }
  if (manifest.samples) {
    const PlanTerms& terms = manifest.samples->terms;
    const SamplePlan plan = SamplesReplay(manifest).finish();
    out += fmt::format("samples    {} epochs of {}: {} are done, {} under way\n", terms.epochs, terms.samples,
                       plan.doneCount(), plan.underWayCount());
  }
  if (manifest.logSegment != 0) out += fmt::format("log        goes on in segment {}\n", manifest.logSegment);
  return {};
}

Result<SegmentContent> showSegment(Env& env, const std::string& path, std::string& out) {
  uint64_t first = 0, last = 0;
  PSD_ASSIGN_OR_RETURN(SegmentContent content, readSegment(env, path, [&](const LogRecord& record) {
                         if (first == 0) first = record.number;
                         last = record.number;
                         return Status();
                       }));
  if (!content.header) {
    out += fmt::format("'{}' has no whole header\n", path);
    return content;
  }
  out += fmt::format("segment {} of history {:016x}, model signature {:016x}, {} records{}\n",
                     content.header->segment, content.header->history, content.header->signature,
                     content.nextRecord - content.header->firstRecord,
                     first == 0 ? "" : fmt::format(" ({} to {})", first, last));
  const uint64_t rest = content.fileBytes - content.wholeBytes;
  if (rest > 0) out += fmt::format("  its last {} bytes are no whole record\n", rest);
  return content;
}

Status inspectSegment(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const SegmentContent content, showSegment(env, path, out));
  if (!content.damage.empty()) return damagedSegment(path, content.damage);
  if (content.header) return {};
  return {ErrorCode::io, "'" + path + "' is no segment of a log, or cut off in its header"};
}

Status inspectTensors(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const SafetensorsReader reader,
                       SafetensorsReader::open(env, path, SafetensorsReader::Takes::floatsAndIntegers));
  out += "safetensors file\n" + describeModel(reader.model());
  return {};
}

Status inspectDeparted(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const std::optional<Departed> departed, readDeparted(env, path));
  if (!departed) return {};
  std::string ranks;
  for (const Rank rank : departed->ranks) ranks += (ranks.empty() ? " (" : ", ") + std::to_string(rank.value);
  if (!ranks.empty()) ranks += ")";
  out += fmt::format("{}: {} of {} ranks have come and gone{}\n", kDepartedName, departed->ranks.size(),
                     departed->worldSize, ranks);
  return {};
}

Status inspectFolder(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers, listCheckpoints(env, path, false));
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.list(path));
  Status worst;
  bool whole = false;
  std::map<uint64_t, uint64_t> logFrom;  // of each history: where its oldest whole checkpoint goes on
  for (uint64_t number : numbers) {
    const std::string folder = checkpointPath(path, number);
    PSD_ASSIGN_OR_RETURN(const bool finished, isCheckpoint(env, folder));
    if (!finished) {
      out += fmt::format("checkpoint {} is unfinished and counts for nothing\n", number);
      continue;
    }
    auto opened = openCheckpoint(env, folder);
    if (opened.ok()) {
      whole = true;
      const Manifest& manifest = opened->manifest;
      if (manifest.logSegment != 0) logFrom.try_emplace(manifest.logHistory, manifest.logSegment);
      out += fmt::format("checkpoint {} of {}, shard 0 at version {}, whole{}\n", number, manifest.created,
                         blocksOf(manifest).front()->version.value,
                         manifest.base ? fmt::format(", goes on from {}", manifest.base->number) : "");
    } else {
      out += fmt::format("checkpoint {}: {}\n", number, opened.message());
      worst = opened.status();
    }
  }
  for (const std::string& name : names) {
    if (!segmentOf(name)) continue;
    if (auto shown = showSegment(env, path + "/" + name, out); !shown.ok()) worst = shown.status();
  }
  // As a daemon would read it: only there it shows whether all of the log follows on what is before it.
  for (const auto& [history, from] : logFrom) {
    const auto read = readLog(env, path, history, from, [](const LogRecord&) { return Status(); });
    if (read.ok()) continue;
    out += fmt::format("log        {}\n", read.message());
    worst = read.status();
  }
  if (Status status = inspectDeparted(env, path, out); !status.ok()) worst = status;
  return worst.ok() && !whole ? noCheckpointIn(path) : worst;
}

Status inspectAnything(Env& env, const std::string& path, std::string& out) {
  PSD_ASSIGN_OR_RETURN(const bool named, isCheckpoint(env, path));
  if (named) return inspectCheckpoint(env, path, out);
  if (env.list(path).ok()) return inspectFolder(env, path, out);
  const std::string name = nameIn(path);
  if (name == kManifestName) return inspectCheckpoint(env, folderOf(path), out);
  if (name == kDepartedName) return inspectDeparted(env, folderOf(path), out);
  if (segmentOf(name)) return inspectSegment(env, path, out);
  return inspectTensors(env, path, out);
}

}  // namespace

Status exportModel(Env& env, const std::string& path, const std::string& table, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  std::string out;
  const Status exported = besideDaemon(env, path, [&]() -> Status {
    out.clear();
    PSD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, checkpointAt(env, path, out));
    PSD_RETURN_IF_ERROR(table.empty() ? exportCheckpoint(env, checkpoint, to)
                                      : exportTable(env, checkpoint, table, to));
    const std::string what =
        table.empty() ? fmt::format("model '{}'", checkpoint.manifest.model.name) : "table '" + table + "'";
    out += fmt::format("wrote {} of checkpoint {} to '{}'\n", what, checkpoint.manifest.number, to);
    return {};
  });
  print(out);
  return exported;
}

Status inspect(Env& env, const std::string& path) {
  PSD_RETURN_IF_ERROR(checkExists(env, path));
  std::string out;
  const Status inspected = besideDaemon(env, path, [&] {
    out.clear();
    return inspectAnything(env, path, out);
  });
  print(out);
  return inspected;
}

Status replay(Env& env, const std::string& folder, std::optional<uint64_t> until, const std::string& to) {
  PSD_RETURN_IF_ERROR(checkExists(env, folder));
  PSD_ASSIGN_OR_RETURN(const bool oneCheckpoint, isCheckpoint(env, folder));
  if (oneCheckpoint || !env.list(folder).ok()) {
    return {ErrorCode::io, "'" + folder + "' is " + (oneCheckpoint ? "one checkpoint" : "a file") +
                               "; expected the folder with checkpoints and log, durability.path"};
  }
  std::unique_ptr<ParameterStore> store;
  PSD_RETURN_IF_ERROR(besideDaemon(env, folder, [&]() -> Status {
    PSD_ASSIGN_OR_RETURN(store, rebuild(env, folder, until ? std::optional(Version{*until}) : std::nullopt));
    return {};
  }));
  std::string versions;
  for (size_t i = 0; i < store->blockCount(); i++) {
    versions += (i == 0 ? "" : ", ") + std::to_string(store->block(i).version().value);
  }
  print(fmt::format("model '{}', shards at update {}\n", store->model().name, versions));
  if (to.empty()) return {};
  PSD_RETURN_IF_ERROR(saveParameters(env, to, *store));
  print(fmt::format("wrote it to '{}'\n", to));
  return {};
}

}  // namespace psd

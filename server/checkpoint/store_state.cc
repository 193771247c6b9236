#include "server/checkpoint/store_state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "server/checkpoint/rows_restore.h"
#include "server/store/await.h"

namespace psd {
namespace {

constexpr uint64_t kPieceElements =
    1u << 16;  // 256 KiB: what a device sends stays in the cache until it is copied
constexpr uint64_t kRestorePieceElements = 1u << 20;

std::vector<std::string> planeNames(const Optimizer& optimizer) {
  std::vector<std::string> names = {std::string(kWeightsPlane)};
  for (const Slot& slot : optimizer.slots()) names.emplace_back(slot.name);
  return names;
}

/// Writes a piece of a plane: the weights (0) or slot plane−1.
Status writePlane(Shard& shard, Lane& lane, size_t plane, uint64_t offset, std::span<const float> values) {
  return await<Status>([&](auto done) {
    if (plane == 0) {
      shard.storage().write(lane, offset, values, done);
    } else {
      shard.storage().writeSlot(lane, static_cast<uint32_t>(plane - 1), offset, values, done);
    }
  });
}

Result<ReadView> readPlane(Shard& shard, Lane& lane, size_t plane, uint64_t offset, uint64_t count) {
  return await<Result<ReadView>>([&](auto done) {
    if (plane == 0) {
      shard.storage().read(lane, offset, count, done);
    } else {
      shard.storage().readSlot(lane, static_cast<uint32_t>(plane - 1), offset, count, done);
    }
  });
}

/// A stretch of the arena that two ranges have in common.
struct Overlap {
  uint64_t begin = 0, end = 0;
  Overlap(uint64_t begin, uint64_t count, const ShardRange& range)
      : begin(std::max(begin, range.begin)), end(std::min(begin + count, range.begin + range.count)) {}
  bool empty() const { return begin >= end; }
};

/// One shard's file of a checkpoint, opened.
struct ShardFile {
  const ManifestShard& shard;
  SafetensorsReader reader;
};

Result<std::vector<ShardFile>> openFiles(Env& env, const Checkpoint& checkpoint) {
  std::vector<ShardFile> files;
  for (const ManifestShard& shard : checkpoint.manifest.shards) {
    const std::string path = checkpoint.path + "/" + shard.file;
    PSD_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::open(env, path));
    for (const std::string& name : planeNames(checkpoint.manifest.groups[shard.range.group].optimizer)) {
      const auto plane = reader.find(name);
      if (!plane || reader.model().tensors[*plane].elementCount() != shard.range.count) {
        return Error{ErrorCode::io, "'" + path + "' is damaged: it has no '" + name + "' of " +
                                        std::to_string(shard.range.count) + " elements"};
      }
    }
    files.push_back({shard, std::move(reader)});
  }
  return files;
}

/// Copies a plane of a file to where it meets a shard of the store.
Status fillPlane(const ShardFile& file, const std::string& name, Shard& shard, Lane& lane, size_t plane) {
  const Overlap overlap(file.shard.range.begin, file.shard.range.count, shard.range());
  std::vector<float> values;
  for (uint64_t at = overlap.begin; at < overlap.end; at += values.size()) {
    values.resize(std::min(kRestorePieceElements, overlap.end - at));
    PSD_RETURN_IF_ERROR(file.reader.read(*file.reader.find(name), at - file.shard.range.begin, values));
    PSD_RETURN_IF_ERROR(writePlane(shard, lane, plane, at - shard.range().begin, values));
  }
  return {};
}

void noteOnce(std::vector<std::string>& notes, std::string note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
}

/// From one plane of an image to the next.
uint64_t planeFloats(uint64_t elements) {
  constexpr uint64_t kGrain = kLayoutGrainElements;
  return (elements + kGrain - 1) / kGrain * kGrain;
}

Status restoreShard(const std::vector<ShardFile>& files, const Checkpoint& checkpoint,
                    const Optimizer& optimizer, Shard& shard, Lane& lane, Restored& restored) {
  const std::vector<std::string> names = planeNames(optimizer);
  Version version, stateBegan;
  bool freshState = names.size() > 1;
  std::vector<PushedRange> pushed;
  for (const ShardFile& file : files) {
    if (Overlap(file.shard.range.begin, file.shard.range.count, shard.range()).empty()) continue;
    version = std::max(version, file.shard.version);
    stateBegan = std::max(stateBegan, file.shard.stateBegan);
    takeOverPushes(file.shard.pushed, file.shard.range.begin, shard.range().begin, shard.range().count,
                   pushed);
    const Optimizer& before = checkpoint.manifest.groups[file.shard.range.group].optimizer;
    for (size_t plane = 0; plane < names.size(); plane++) {
      const bool sameType = before.name() == optimizer.name();
      if (plane > 0 && (!sameType || !file.reader.find(names[plane]))) {
        noteOnce(restored.notes, "the state of optimizer '" + std::string(before.name()) +
                                     "' is not taken over: optimizer '" + std::string(optimizer.name()) +
                                     "' begins with a fresh '" + names[plane] + "'");
        continue;
      }
      PSD_RETURN_IF_ERROR(fillPlane(file, names[plane], shard, lane, plane));
      if (plane > 0) freshState = false;
    }
    if (names.size() == 1 && !before.slots().empty()) {
      noteOnce(restored.notes, "the state of optimizer '" + std::string(before.name()) +
                                   "' is dropped: optimizer '" + std::string(optimizer.name()) +
                                   "' keeps none");
    }
  }
  shard.restore(version, PushedRanges(std::move(pushed)), freshState ? version : stateBegan);
  return {};
}

}  // namespace

void ShardImage::Free::operator()(float* memory) const { std::free(memory); }

Result<ShardImage> ShardImage::make(const ParameterStore& store, std::span<const size_t> shards) {
  ShardImage image;
  for (uint32_t group = 0; group < store.groupCount(); group++) {
    image.groupNames_.push_back(planeNames(store.optimizer(group)));
  }
  uint64_t bytes = 0;
  for (const size_t shard : shards) {
    const ShardRange& range = store.shard(shard).range();
    const uint64_t planes = image.groupNames_[range.group].size();
    bytes = std::max(bytes, planes * planeFloats(range.count) * sizeof(float));
  }
  image.memory_.reset(static_cast<float*>(std::aligned_alloc(kLayoutGrainElements * sizeof(float), bytes)));
  if (!image.memory_) {
    return Error{ErrorCode::overloaded,
                 "no memory for the copy of a shard (" + std::to_string(bytes) + " bytes)"};
  }
  std::memset(static_cast<void*>(image.memory_.get()), 0, bytes);
  image.bytes_ = bytes;
  return image;
}

Status ShardImage::copy(Shard& shard, Lane& lane) {
  elements_ = shard.range().count;
  // Weights in host memory are copied at once: a long copy does not go through the cache.
  const uint64_t piece = shard.storage().synchronous() ? elements_ : kPieceElements;
  names_ = groupNames_[shard.range().group];
  for (size_t plane = 0; plane < names_.size(); plane++) {
    float* to = memory_.get() + plane * planeFloats(elements_);
    for (uint64_t at = 0; at < elements_; at += piece) {
      const uint64_t count = std::min(piece, elements_ - at);
      auto view = readPlane(shard, lane, plane, at, count);
      if (!view.ok()) return view.error();
      std::memcpy(to + at, view->values.data(), count * sizeof(float));
    }
  }
  return {};
}

std::vector<CheckpointWriter::Plane> ShardImage::planes() const {
  std::vector<CheckpointWriter::Plane> planes;
  for (size_t i = 0; i < names_.size(); i++) {
    planes.push_back({names_[i], {memory_.get() + i * planeFloats(elements_), elements_}});
  }
  return planes;
}

Manifest describeStore(const ParameterStore& store, const std::vector<std::string>& policies) {
  Manifest manifest;
  manifest.model = store.model();
  for (uint32_t group = 0; group < store.groupCount(); group++) {
    manifest.groups.push_back({policies[group], store.optimizer(group)});
  }
  const auto describe = [](const ParameterBlock& block, ManifestBlock& entry) {
    entry.range = block.range();
    entry.stateBegan = block.stateBegan();
  };
  for (size_t i = 0; i < store.shardCount(); i++) describe(store.shard(i), manifest.shards.emplace_back());
  manifest.rowSteps.resize(store.model().tables.size());
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    ManifestRowShard& shard = manifest.rowShards.emplace_back();
    describe(store.rowShard(i), shard);
    for (const RowShard::Table& table : store.rowShard(i).tables()) {
      shard.tables.push_back(table.index);
      manifest.rowSteps[table.index] = table.rowSteps;
    }
  }
  return manifest;
}

Status checkModel(const Checkpoint& checkpoint, const ParameterStore& store) {
  const ModelSpec& saved = checkpoint.manifest.model;
  if (saved.signature() == store.model().signature()) return {};
  return {ErrorCode::modelMismatch,
          "'" + checkpoint.path + "' holds another model: " +
              describeDifference(store.model(), "the daemon's", saved, "the checkpoint's")};
}

Result<Restored> restoreStore(Env& env, const Checkpoint& checkpoint, ParameterStore& store) {
  PSD_RETURN_IF_ERROR(checkModel(checkpoint, store));
  PSD_ASSIGN_OR_RETURN(const std::vector<ShardFile> files, openFiles(env, checkpoint));
  Lanes lanes = store.makeLanes();
  Restored restored;
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    PSD_RETURN_IF_ERROR(
        restoreShard(files, checkpoint, store.optimizerOf(shard), shard, *lanes[shard.device()], restored));
  }
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    PSD_RETURN_IF_ERROR(restoreRows(env, checkpoint, store.rowShard(i), restored.notes));
  }
  return restored;
}

Status exportTable(Env& env, const Checkpoint& checkpoint, const std::string& table, const std::string& to) {
  const auto& tables = checkpoint.manifest.model.tables;
  const auto found = std::ranges::find(tables, table, &TableSpec::name);
  if (found == tables.end()) {
    std::vector<std::string> names;
    for (const TableSpec& each : tables) names.push_back(each.name);
    return {ErrorCode::invalidArgument,
            fmt::format("'{}' has no table '{}'; its tables are: {}", checkpoint.path, printable(table),
                        fmt::join(names, ", "))};
  }
  return writeTable(env, checkpoint, static_cast<uint32_t>(found - tables.begin()), to);
}

Status exportCheckpoint(Env& env, const Checkpoint& checkpoint, const std::string& to) {
  PSD_ASSIGN_OR_RETURN(const std::vector<ShardFile> files, openFiles(env, checkpoint));
  const ModelSpec& model = checkpoint.manifest.model;
  if (model.tensors.empty()) {
    return {ErrorCode::invalidArgument,
            "'" + checkpoint.path + "' holds embedding tables alone; name one of them with --table"};
  }
  const ModelLayout layout(model);
  std::vector<float> values;
  const auto source = [&](size_t tensor,
                          const std::function<Status(std::span<const float>)>& sink) -> Status {
    const TensorPlace& place = layout.places()[tensor];
    for (const ShardFile& file : files) {
      const Overlap overlap(place.begin, place.count, file.shard.range);
      for (uint64_t at = overlap.begin; at < overlap.end; at += values.size()) {
        values.resize(std::min(kRestorePieceElements, overlap.end - at));
        PSD_RETURN_IF_ERROR(
            file.reader.read(*file.reader.find(kWeightsPlane), at - file.shard.range.begin, values));
        PSD_RETURN_IF_ERROR(sink(values));
      }
    }
    return {};
  };
  return writeFileAtomically(env, to, [&](WritableFile& file) {
    return writeSafetensors(file, model, {{"format", "pt"}, {"writer", "psd " PSD_VERSION}}, source);
  });
}

}  // namespace psd

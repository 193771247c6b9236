#include "server/checkpoint/store_state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kj/async.h>

#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "server/checkpoint/rows_restore.h"
#include "server/store/await.h"
#include "server/store/derived_weights.h"

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

/// Writes part of a plane: the weights (0) or slot plane−1.
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

/// A range of elements in the whole model's layout.
struct ElementRange {
  uint64_t begin = 0, end = 0;

  bool empty() const { return begin >= end; }
  ElementRange common(const ElementRange& other) const {
    return {std::max(begin, other.begin), std::min(end, other.end)};
  }
};

/// A shard's elements in the whole model's layout, in which its partition has the offset `begin`.
ElementRange placed(const ShardRange& range, uint64_t begin) {
  return {begin + range.begin, begin + range.begin + range.count};
}

/// An open file of a checkpoint's shard.
struct ShardFile {
  const Manifest& manifest;
  const ManifestShard& shard;
  ElementRange elements;
  SafetensorsReader reader;

  const Optimizer& optimizer() const { return manifest.groups[shard.range.group].optimizer; }
};

/// Opens the files of the shards that overlap `wanted`; other files need not exist.
Result<std::vector<ShardFile>> openFiles(Env& env, std::span<const PlacedCheckpoint> from,
                                         const ElementRange& wanted = {0, UINT64_MAX}) {
  std::vector<ShardFile> files;
  for (const auto& [checkpoint, begin] : from) {
    for (const ManifestShard& shard : checkpoint->manifest.shards) {
      if (wanted.common(placed(shard.range, begin)).empty()) continue;
      const std::string path = checkpoint->path + "/" + shard.file;
      PSD_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::open(env, path));
      for (const std::string& name : planeNames(checkpoint->manifest.groups[shard.range.group].optimizer)) {
        const auto plane = reader.find(name);
        if (!plane || reader.model().tensors[*plane].elementCount() != shard.range.count) {
          return Error{ErrorCode::io, "'" + path + "' is damaged: it has no '" + name + "' of " +
                                          std::to_string(shard.range.count) + " elements"};
        }
      }
      files.push_back({checkpoint->manifest, shard, placed(shard.range, begin), std::move(reader)});
    }
  }
  return files;
}

/// Copies the part of a plane that overlaps `elements`, the range of a shard of the store.
Status fillPlane(const ShardFile& file, const std::string& name, Shard& shard, const ElementRange& elements,
                 Lane& lane, size_t plane) {
  const ElementRange common = elements.common(file.elements);
  std::vector<float> values;
  for (uint64_t at = common.begin; at < common.end; at += values.size()) {
    values.resize(std::min(kRestorePieceElements, common.end - at));
    PSD_RETURN_IF_ERROR(file.reader.read(*file.reader.find(name), at - file.elements.begin, values));
    PSD_RETURN_IF_ERROR(writePlane(shard, lane, plane, at - elements.begin, values));
  }
  return {};
}

void noteOnce(std::vector<std::string>& notes, std::string note) {
  if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(std::move(note));
}

/// Fills the planes of the elements that the file has and the shard too, with the file's state if it fits the
/// optimizer. Returns whether any state was restored.
Result<bool> fillPlanes(const ShardFile& file, const Optimizer& optimizer, Shard& shard,
                        const ElementRange& elements, Lane& lane, std::vector<std::string>& notes) {
  const std::vector<std::string> names = planeNames(optimizer);
  const Optimizer& before = file.optimizer();
  const bool sameType = before.name() == optimizer.name();
  if (sameType) PSD_RETURN_IF_ERROR(checkRateOfState(before, optimizer));
  bool restored = false;
  for (size_t plane = 0; plane < names.size(); plane++) {
    if (plane > 0 && (!sameType || !file.reader.find(names[plane]))) {
      noteOnce(notes, "the state of optimizer '" + std::string(before.name()) +
                          "' is not restored: optimizer '" + std::string(optimizer.name()) +
                          "' starts with a fresh '" + names[plane] + "'");
      continue;
    }
    PSD_RETURN_IF_ERROR(fillPlane(file, names[plane], shard, elements, lane, plane));
    if (plane > 0) restored = true;
  }
  if (names.size() == 1 && !before.slots().empty()) {
    noteOnce(notes, "the state of optimizer '" + std::string(before.name()) + "' is dropped: optimizer '" +
                        std::string(optimizer.name()) + "' keeps none");
  }
  // Other numbers than before yield other weights, and a copy of racing updates may have older ones.
  const ElementRange common = elements.common(file.elements);
  const auto derive = restored ? deriveShardWeights : deriveShardState;
  PSD_RETURN_IF_ERROR(
      derive(optimizer, shard, lane, common.begin - elements.begin, common.end - common.begin));
  return restored;
}

/// Distance between the planes of an image, in floats.
uint64_t planeFloats(uint64_t elements) {
  constexpr uint64_t kGrain = kLayoutGrainElements;
  return (elements + kGrain - 1) / kGrain * kGrain;
}

/// `partition`: the store's, with the offset `begin` in the whole model's layout.
Status restoreShard(const std::vector<ShardFile>& files, const Partition& partition, uint64_t begin,
                    const Optimizer& optimizer, Shard& shard, Lane& lane, Restored& restored) {
  const ElementRange elements = placed(shard.range(), begin);
  Version version, stateSince, oldestBasis;
  bool freshState = optimizer.slotCount() > 0;
  std::vector<PushedRange> pushed;
  for (const ShardFile& file : files) {
    if (elements.common(file.elements).empty()) continue;
    version = std::max(version, file.shard.version);
    stateSince = std::max(stateSince, file.shard.stateSince);
    oldestBasis = std::max(oldestBasis, file.shard.oldestBasis);
    if (file.manifest.model.partition == partition) {
      copyPushes(file.shard.pushed, file.elements.begin, elements.begin, shard.range().count, pushed);
    }
    PSD_ASSIGN_OR_RETURN(const bool state,
                         fillPlanes(file, optimizer, shard, elements, lane, restored.notes));
    if (state) freshState = false;
  }
  shard.restore(version, pushedOf(shard.range().count, std::move(pushed)), freshState ? version : stateSince,
                oldestBasis);
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
  // Weights in host memory are copied in one piece: a long copy bypasses the cache.
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
    entry.stateSince = block.stateSince();
    entry.oldestBasis = block.oldestBasis();
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
  const PlacedCheckpoint all{&checkpoint};
  return restorePartition(env, {&all, 1}, store, 0);
}

Result<Restored> restorePartition(Env& env, std::span<const PlacedCheckpoint> from, ParameterStore& store,
                                  uint64_t begin) {
  const ElementRange whole{begin, begin + ModelLayout(store.model()).totalElements()};
  PSD_ASSIGN_OR_RETURN(const std::vector<ShardFile> files, openFiles(env, from, whole));
  const Partition& partition = store.model().partition;
  Lanes lanes = store.makeLanes();
  Restored restored;
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    PSD_RETURN_IF_ERROR(restoreShard(files, partition, begin, store.optimizerOf(shard), shard,
                                     *lanes[shard.device()], restored));
  }
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    PSD_RETURN_IF_ERROR(restoreRows(env, from, partition, store.rowShard(i), restored.notes));
  }
  if (partition.index > 0) return restored;
  PSD_ASSIGN_OR_RETURN(auto buffers, readBuffers(env, *from.front().checkpoint));
  if (buffers) store.buffers().set(std::move(buffers));
  return restored;
}

Result<ModelState> stateOf(ParameterStore& store) {
  const Lanes lanes = store.makeLanes();
  ModelState state;
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    ModelState::OfShard& out = state.shards.emplace_back();
    out.steps = shard.version().value - shard.stateSince().value;
    for (size_t plane = 0; plane < planeNames(store.optimizerOf(shard)).size(); plane++) {
      std::vector<float>& values = out.planes.emplace_back();
      values.reserve(shard.range().count);
      while (values.size() < shard.range().count) {
        const uint64_t count = std::min(kRestorePieceElements, shard.range().count - values.size());
        PSD_ASSIGN_OR_RETURN(const ReadView view,
                             readPlane(shard, *lanes[shard.device()], plane, values.size(), count));
        values.insert(values.end(), view.values.begin(), view.values.end());
      }
    }
  }
  return state;
}

Status replaceState(ParameterStore& store, const ModelState& state, bool pristine) {
  kj::EventLoop loop;  // locks are awaited as promises; this thread may block
  kj::WaitScope scope(loop);
  std::vector<ShardLock::Guard> locked;
  for (size_t i = 0; i < store.shardCount(); i++) {
    locked.push_back(store.shard(i).lock().acquire().wait(scope));
  }
  const Lanes lanes = store.makeLanes();
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    const auto& planes = state.shards[i].planes;
    for (size_t plane = 0; plane < planes.size(); plane++) {
      for (uint64_t at = 0; at < shard.range().count; at += kRestorePieceElements) {
        const uint64_t count = std::min(kRestorePieceElements, shard.range().count - at);
        PSD_RETURN_IF_ERROR(writePlane(shard, *lanes[shard.device()], plane, at,
                                       std::span(planes[plane]).subspan(at, count)));
      }
    }
    PSD_RETURN_IF_ERROR(
        deriveShardWeights(store.optimizerOf(shard), shard, *lanes[shard.device()], 0, shard.range().count));
  }
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    const uint64_t steps = state.shards[i].steps;
    const uint64_t version = std::max(steps, shard.version().value + 1);
    shard.replace(Version{version}, Version{version - steps}, pristine);
  }
  return {};
}

StoreGroups groupsOf(std::span<const PlacedCheckpoint> from, const ModelSpec& model, uint64_t begin) {
  StoreGroups groups;
  const Manifest& first = from.front().checkpoint->manifest;
  for (const ManifestGroup& group : first.groups) groups.optimizers.push_back(group.optimizer);
  groups.rowSteps = first.rowSteps;
  const ModelLayout layout(model);
  for (const TensorPlace& place : layout.places()) {
    const ElementRange tensor{begin + place.begin, begin + place.begin + place.count};
    for (const auto& [checkpoint, at] : from) {
      const auto& shards = checkpoint->manifest.shards;
      const auto holds = std::ranges::find_if(shards, [&, at = at](const ManifestShard& shard) {
        return !placed(shard.range, at).common(tensor).empty();
      });
      if (holds == shards.end()) continue;
      groups.groupOfTensor.push_back(holds->range.group);
      break;
    }
  }
  // The row shards of each group divide the hash space evenly.
  for (uint32_t table = 0; table < model.tables.size(); table++) {
    const auto holds = [&](const ManifestRowShard& shard) {
      return std::ranges::find(shard.tables, table) != shard.tables.end();
    };
    groups.groupOfTable.push_back(std::ranges::find_if(first.rowShards, holds)->range.group);
    for (const auto& [checkpoint, at] : from) {
      const auto count = std::ranges::count_if(checkpoint->manifest.rowShards, holds);
      groups.rowShards = std::max(groups.rowShards, static_cast<uint32_t>(count));
    }
  }
  return groups;
}

Status exportCheckpoint(Env& env, const Checkpoint& checkpoint, const std::string& to) {
  const PlacedCheckpoint all{&checkpoint};
  PSD_ASSIGN_OR_RETURN(const std::vector<ShardFile> files, openFiles(env, {&all, 1}));
  const ModelSpec& model = checkpoint.manifest.model;
  if (model.tensors.empty()) {
    return {ErrorCode::invalidArgument,
            "'" + checkpoint.path + "' holds only embedding tables; name one of them with --table"};
  }
  PSD_ASSIGN_OR_RETURN(const auto buffers, readBuffers(env, checkpoint));
  const ModelLayout layout(model);
  std::vector<float> values;
  const auto source = [&](size_t tensor,
                          const std::function<Status(std::span<const float>)>& sink) -> Status {
    const TensorPlace& place = layout.places()[tensor];
    for (const ShardFile& file : files) {
      const ElementRange common = file.elements.common({place.begin, place.begin + place.count});
      for (uint64_t at = common.begin; at < common.end; at += values.size()) {
        values.resize(std::min(kRestorePieceElements, common.end - at));
        PSD_RETURN_IF_ERROR(
            file.reader.read(*file.reader.find(kWeightsPlane), at - file.elements.begin, values));
        PSD_RETURN_IF_ERROR(sink(values));
      }
    }
    return {};
  };
  return writeFileAtomically(
      env, to, [&](WritableFile& file) { return writeModelFile(file, model, buffers.get(), source); });
}

}  // namespace psd

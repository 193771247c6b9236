#include "server/store/parameter_store.h"

#include <algorithm>

#include "common/types/finite.h"
#include "server/store/await.h"

namespace psd {
namespace {

constexpr uint64_t kPieceElements = 1u << 20;  // 4 MiB, copied through host memory at a time

/// Calls `visit(shard, offset in the shard, element in [0, place.count), count)` for each piece of a tensor.
template <class Visit>
Status forEachPiece(ParameterStore& store, const TensorPlace& place, Visit visit) {
  for (size_t i = 0; i < store.shardCount(); i++) {
    const ShardRange& range = store.shard(i).range();
    uint64_t begin = std::max(range.begin, place.begin);
    uint64_t end = std::min(range.begin + range.count, place.begin + place.count);
    for (; begin < end; begin += kPieceElements) {
      uint64_t count = std::min(kPieceElements, end - begin);
      PSD_RETURN_IF_ERROR(visit(store.shard(i), begin - range.begin, begin - place.begin, count));
    }
  }
  return {};
}

/// Runs of consecutive tensors of the same group and dtype, padding included.
std::vector<GroupRun> groupRuns(const ModelSpec& model, const std::vector<uint32_t>& groupOfTensor) {
  const ModelLayout layout(model);
  std::vector<GroupRun> runs;
  const auto& places = layout.places();
  for (size_t i = 0; i < places.size(); i++) {
    const uint64_t end = i + 1 < places.size() ? places[i + 1].begin : layout.totalElements();
    const DType dtype = model.tensors[i].dtype;
    if (runs.empty() || runs.back().group != groupOfTensor[i] || runs.back().dtype != dtype) {
      runs.push_back({0, groupOfTensor[i], dtype});
    }
    runs.back().count += end - places[i].begin;
  }
  return runs;
}

}  // namespace

ParameterStore::ParameterStore(ModelSpec model, ShardPlan plan,
                               std::vector<std::shared_ptr<Backend>> backends, StoreGroups groups)
    : model_(std::move(model)),
      layout_(model_),
      plan_(std::move(plan)),
      backends_(std::move(backends)),
      groups_(std::move(groups)) {}

Result<std::unique_ptr<ParameterStore>> ParameterStore::create(ModelSpec model, uint32_t shardCount,
                                                               std::vector<std::shared_ptr<Backend>> backends,
                                                               StoreGroups groups) {
  PSD_RETURN_IF_ERROR(validateModel(model));
  ShardPlan plan = ShardPlan::make(groupRuns(model, groups.groupOfTensor), shardCount);
  std::unique_ptr<ParameterStore> store(
      new ParameterStore(std::move(model), std::move(plan), std::move(backends), std::move(groups)));
  store->shards_.resize(store->plan_.shards.size());
  for (size_t device = 0; device < store->backends_.size(); device++) {
    std::vector<ShardRequest> requests;
    for (size_t i = device; i < store->shards_.size(); i += store->backends_.size()) {
      const ShardRange& range = store->plan_.shards[i];
      requests.push_back({range.count, store->groups_.optimizers[range.group]});
    }
    if (requests.empty()) continue;
    PSD_ASSIGN_OR_RETURN(auto storages, store->backends_[device]->allocate(requests));
    for (size_t k = 0; k < storages.size(); k++) {
      size_t i = device + k * store->backends_.size();
      store->shards_[i] = std::make_unique<Shard>(store->plan_.shards[i], device, std::move(storages[k]));
    }
  }
  PSD_RETURN_IF_ERROR(store->makeRowShards());
  return store;
}

Status ParameterStore::makeRowShards() {
  for (uint32_t group = 0; group < groups_.optimizers.size(); group++) {
    std::vector<uint32_t> tables;
    for (uint32_t table = 0; table < model_.tables.size(); table++) {
      if (groups_.groupOfTable[table] == group) tables.push_back(table);
    }
    if (tables.empty()) continue;
    for (ShardRange range : planRowShards(groups_.rowShards)) {
      const auto epochs = std::make_shared<Epochs>();
      range.id = ShardId{static_cast<uint32_t>(blockCount())};
      range.group = group;
      const size_t device = blockCount() % backends_.size();
      std::vector<RowShard::Table> own;
      for (const uint32_t table : tables) {
        const TableSpec& spec = model_.tables[table];
        const RowTable::Options of{spec.initial, RowShard::hashesOf(range), {}};
        PSD_ASSIGN_OR_RETURN(auto storage,
                             backends_[device]->makeRowStorage(spec.dim, groups_.optimizers[group]));
        own.push_back({table, groups_.rowSteps.empty() || groups_.rowSteps[table],
                       std::make_unique<RowTable>(of, std::move(storage), epochs),
                       std::make_unique<RowGate>(spec.initial.seed, of.range)});
      }
      rowShards_.push_back(
          std::make_unique<RowShard>(range, device, groups_.optimizers[group], std::move(own), tableBytes_));
    }
  }
  return {};
}

void ParameterStore::setRowRules(uint32_t table, const RowRules& rules) {
  RowRules ofShard = rules;
  ofShard.rowsMax = std::min<uint64_t>(
      rules.rowsMax / groups_.rowShards + (rules.rowsMax % groups_.rowShards != 0), kNoRow);
  for (const auto& shard : rowShards_) shard->setRules(table, ofShard);
}

Result<std::unique_ptr<ParameterStore>> ParameterStore::create(ModelSpec model, uint32_t shardCount,
                                                               std::vector<std::shared_ptr<Backend>> backends,
                                                               const Optimizer& optimizer) {
  StoreGroups one{std::vector<uint32_t>(model.tensors.size(), 0),
                  {optimizer},
                  std::vector<uint32_t>(model.tables.size(), 0)};
  return create(std::move(model), shardCount, std::move(backends), std::move(one));
}

std::string ParameterStore::describeDevices() const {
  std::string text;
  for (const auto& backend : backends_) text += (text.empty() ? "" : ", ") + backend->describe();
  return text;
}

std::optional<SharedArena> ParameterStore::sharedArena() const {
  if (shards_.empty()) return {};
  const auto& first = shards_[0]->sharedPlace();
  if (!first) return {};
  SharedArena arena{first->file, first->valuesAt, first->versionAt, 0, first->readableAt};
  for (size_t i = 1; i < shards_.size(); i++) {
    const auto& place = shards_[i]->sharedPlace();
    if (!place || place->file != arena.file) return {};
    if (i == 1) arena.versionStep = place->versionAt - arena.versionsAt;
    if (place->valuesAt != arena.valuesAt + shards_[i]->range().begin * sizeof(float)) return {};
    if (place->versionAt != arena.versionsAt + i * arena.versionStep) return {};
  }
  return arena;
}

void ParameterStore::setOptimizer(uint32_t group, const Optimizer& optimizer) {
  for (const auto& shard : shards_) {
    if (shard->group() == group) shard->storage().setOptimizer(optimizer);
  }
  for (const auto& shard : rowShards_) {
    if (shard->group() == group) shard->setOptimizer(optimizer);
  }
  const std::lock_guard lock(optimizersMutex_);
  groups_.optimizers[group] = optimizer;
}

void ParameterStore::setSharedReadable(bool readable) {
  if (const auto arena = sharedArena()) {
    sharedWord(*arena->file, arena->readableAt).store(readable ? 1 : 0, std::memory_order_release);
  }
}

Lanes ParameterStore::makeLanes() const {
  Lanes lanes;
  for (const auto& backend : backends_) lanes.push_back(backend->makeLane());
  return lanes;
}

bool ParameterStore::sharesDeviceMemory() const {
  return std::all_of(shards_.begin(), shards_.end(),
                     [this](const auto& shard) { return backends_[shard->device()]->sharesMemory(); });
}

Status saveParameters(Env& env, const std::string& path, ParameterStore& store) {
  Lanes lanes = store.makeLanes();
  auto source = [&](size_t tensor, const std::function<Status(std::span<const float>)>& sink) {
    return forEachPiece(store, store.layout().places()[tensor],
                        [&](Shard& shard, uint64_t offset, uint64_t, uint64_t count) -> Status {
                          auto view = await<Result<ReadView>>([&](auto done) {
                            shard.storage().read(*lanes[shard.device()], offset, count, done);
                          });
                          if (!view.ok()) return view.error();
                          return sink(view->values);
                        });
  };
  return writeFileAtomically(env, path, [&](WritableFile& file) {
    return writeModelFile(file, store.model(), store.buffers().get().set.get(), source);
  });
}

Status copyParameters(ParameterStore& from, ParameterStore& to) {
  const Lanes reading = from.makeLanes(), writing = to.makeLanes();
  const auto& tensors = from.model().tensors;
  for (size_t i = 0; i < to.model().tensors.size(); i++) {
    const auto same = std::find(tensors.begin(), tensors.end(), to.model().tensors[i]);
    if (same == tensors.end()) {
      return {ErrorCode::modelMismatch, "the source has no tensor " + to.model().tensors[i].toString()};
    }
    const TensorPlace& place = from.layout().places()[static_cast<size_t>(same - tensors.begin())];
    const uint64_t target = to.layout().places()[i].begin;
    PSD_RETURN_IF_ERROR(forEachPiece(
        from, place, [&](Shard& source, uint64_t offset, uint64_t element, uint64_t count) -> Status {
          auto view = await<Result<ReadView>>(
              [&](auto done) { source.storage().read(*reading[source.device()], offset, count, done); });
          if (!view.ok()) return view.error();
          const TensorPlace part{target + element, count};
          return forEachPiece(to, part,
                              [&](Shard& shard, uint64_t at, uint64_t first, uint64_t length) -> Status {
                                return await<Status>([&](auto done) {
                                  shard.storage().write(*writing[shard.device()], at,
                                                        view->values.subspan(first, length), done);
                                });
                              });
        }));
  }
  if (auto buffers = from.buffers().get().set) to.buffers().set(std::move(buffers));
  return {};
}

Status loadParameters(const SafetensorsReader& file, ParameterStore& store) {
  Lanes lanes = store.makeLanes();
  std::vector<float> values;
  for (size_t i = 0; i < store.model().tensors.size(); i++) {
    const TensorSpec& tensor = store.model().tensors[i];
    PSD_ASSIGN_OR_RETURN(const size_t index, file.find(tensor));
    PSD_RETURN_IF_ERROR(forEachPiece(
        store, store.layout().places()[i],
        [&](Shard& shard, uint64_t offset, uint64_t element, uint64_t count) -> Status {
          values.resize(count);
          PSD_RETURN_IF_ERROR(file.read(index, element, values));
          if (!allFinite(values)) {
            return {ErrorCode::modelMismatch,
                    "tensor " + tensor.toString() + ": holds NaN or infinity in '" + file.model().name + "'"};
          }
          return await<Status>(
              [&](auto done) { shard.storage().write(*lanes[shard.device()], offset, values, done); });
        }));
  }
  PSD_ASSIGN_OR_RETURN(auto buffers, readBuffers(file));
  if (!buffers) return {};
  PSD_RETURN_IF_ERROR(buffers->checkNames(store.model()));
  store.buffers().set(std::move(buffers));
  return {};
}

}  // namespace psd

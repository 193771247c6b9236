#pragma once

#include <memory>
#include <string>

#include "common/config/object_reader.h"
#include "server/checkpoint/checkpointer.h"
#include "server/checkpoint/manifest.h"
#include "server/optimizer/optimizer_config.h"
#include "test/fuzz/fuzz_target.h"
#include "test/support/memory_env.h"

namespace psd::fuzz {

/// A model of two shards and a row shard for input that is read into a store.
inline std::shared_ptr<ParameterStore> makeSmallStore() {
  ObjectReader reader(nlohmann::ordered_json{{"type", "adagrad"}, {"lr", 0.1}});
  const Optimizer optimizer = readOptimizer(reader);
  require(reader.finish().ok(), "the optimizer is valid");
  const ModelSpec model{"small", {{"w", DType::f32, {4, 8}}, {"b", DType::f32, {8}}}, {{"t", 2, {}}}};
  auto store = ParameterStore::create(model, 2, {makeCpuBackend()}, optimizer);
  require(store.ok(), "a small store can be made");
  return *std::move(store);
}

inline CheckpointSource sourceOf(std::shared_ptr<ParameterStore> store) {
  CheckpointSource source;
  source.store = std::move(store);
  source.groups = [] { return std::vector<CheckpointSource::Group>{{"locked"}}; };
  return source;
}

/// Some rows, and counts of others that are not admitted.
inline void addRows(ParameterStore& store) {
  store.setRowRules(0, {.admit = {.pushes = 2, .counters = 256}});
  RowShard& shard = store.rowShard(0);
  const std::vector<uint64_t> ids = {1, 2, 3, UINT64_MAX};
  const std::vector<float> gradients(2 * ids.size(), 0.5f);
  for (uint32_t count : {4u, 3u}) {
    const RowRun run{0, count};
    const StagedRows part{
        {{&run, 1}, std::span(ids).first(count)}, std::span(gradients).first(2 * count), nullptr};
    require(shard.update(part, {}, shard.scalars(shard.beginExclusiveUpdate())).ok(),
            "there is space for rows");
    shard.endUpdate();
  }
}

/// Takes checkpoint 1 of a small store into "/data".
inline void saveSmallStore(testing::MemoryEnv& env) {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::checkpoint;
  config.path = "/data";
  const auto store = makeSmallStore();
  addRows(*store);
  require(Checkpointer(env, config, sourceOf(store), 1).takeNow().ok(), "a checkpoint is taken");
}

}  // namespace psd::fuzz

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

/// A model of two shards for what is read into a store.
inline std::shared_ptr<ParameterStore> makeSmallStore() {
  ObjectReader reader(nlohmann::ordered_json{{"type", "adagrad"}, {"lr", 0.1}});
  const Optimizer optimizer = readOptimizer(reader);
  require(reader.finish().ok(), "the optimizer is right");
  const ModelSpec model{"small", {{"w", DType::f32, {4, 8}}, {"b", DType::f32, {8}}}};
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

/// Takes checkpoint 1 of a small store into "/data".
inline void saveSmallStore(testing::MemoryEnv& env) {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::checkpoint;
  config.path = "/data";
  require(Checkpointer(env, config, sourceOf(makeSmallStore()), 1).takeNow().ok(), "a checkpoint is taken");
}

}  // namespace psd::fuzz

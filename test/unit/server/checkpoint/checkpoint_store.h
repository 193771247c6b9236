#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "common/config/object_reader.h"
#include "server/checkpoint/store_state.h"
#include "server/optimizer/optimizer_config.h"
#include "server/store/parameter_store.h"
#include "test/support/catch.h"
#include "test/support/storage_calls.h"

namespace psd::testing {

inline Optimizer optimizerOf(const std::string& json) {
  ObjectReader reader(nlohmann::ordered_json::parse(json));
  Optimizer optimizer = readOptimizer(reader);
  PSD_REQUIRE_OK(reader.finish());
  return optimizer;
}

inline const ModelSpec kSmallModel{
    "small", {{"a", DType::f32, {5, 7}}, {"b", DType::f32, {}}, {"c", DType::f32, {40}}}};

inline std::unique_ptr<ParameterStore> makeStore(uint32_t shards, const std::string& optimizer,
                                                 const ModelSpec& model = kSmallModel,
                                                 std::shared_ptr<Backend> device = makeCpuBackend()) {
  auto store = ParameterStore::create(model, shards, {std::move(device)}, optimizerOf(optimizer));
  PSD_REQUIRE_OK(store);
  return std::move(*store);
}

/// One update of a shard: every gradient element is `gradient`.
inline void update(ParameterStore& store, size_t index, float gradient) {
  Lanes lanes = store.makeLanes();
  Shard& shard = store.shard(index);
  const uint64_t number = shard.beginUpdate();
  const std::vector<float> values(shard.range().count, gradient);
  PSD_REQUIRE_OK(waitFor<Status>(
      [&](auto done) { shard.storage().apply(*lanes[0], 0, values, shard.scalars(number), done); }));
  shard.endUpdate();
}

/// All weights, then all values of each slot, of the whole arena.
inline std::vector<std::vector<float>> contentOf(ParameterStore& store) {
  Lanes lanes = store.makeLanes();
  std::vector<std::vector<float>> planes(1 + store.optimizer(0).slotCount());
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    for (size_t plane = 0; plane < planes.size(); plane++) {
      auto view = waitFor<Result<ReadView>>([&](auto done) {
        if (plane == 0) return shard.storage().snapshot(*lanes[0], 0, shard.range().count, done);
        shard.storage().readSlot(*lanes[0], static_cast<uint32_t>(plane - 1), 0, shard.range().count, done);
      });
      PSD_REQUIRE_OK(view);
      planes[plane].insert(planes[plane].end(), view->values.begin(), view->values.end());
    }
  }
  return planes;
}

/// Writes checkpoint `number` of the store to `folder`.
inline Status saveStore(Env& env, const std::string& folder, uint64_t number, ParameterStore& store) {
  PSD_ASSIGN_OR_RETURN(CheckpointWriter writer, CheckpointWriter::begin(env, folder, number));
  std::vector<size_t> shards(store.shardCount());
  std::iota(shards.begin(), shards.end(), size_t{0});
  PSD_ASSIGN_OR_RETURN(ShardImage image, ShardImage::make(store, shards));
  Lanes lanes = store.makeLanes();
  Manifest manifest = describeStore(store, {"locked"});
  for (ManifestShard& entry : manifest.shards) {
    Shard& shard = store.shard(entry.range.id.value);
    entry.version = shard.version();
    entry.pushed = shard.pushed();
    PSD_RETURN_IF_ERROR(image.copy(shard, *lanes[0]));
    PSD_RETURN_IF_ERROR(writer.addShard(entry, image.planes()));
  }
  return writer.finish(std::move(manifest));
}

}  // namespace psd::testing

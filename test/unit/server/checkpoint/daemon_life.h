#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "server/checkpoint/durability.h"
#include "test/support/event_loop.h"
#include "test/support/memory_env.h"
#include "test/unit/server/checkpoint/checkpoint_store.h"

namespace psd::testing {

inline const std::string kCounting = R"({"type": "sgd", "lr": 1})";  // with a gradient of −1 the model counts

/// One update under the lock, as a policy makes it. Returns its number in the log.
inline uint64_t push(ParameterStore& store, size_t index, const Gradient& gradient, Step step,
                     UpdatePart part = UpdatePart::whole) {
  Lanes lanes = store.makeLanes();
  Shard& shard = store.shard(index);
  const uint64_t number = shard.beginUpdate();
  const UpdateScalars scalars = shard.scalars(number);
  PSD_REQUIRE_OK(
      waitFor<Status>([&](auto done) { shard.storage().apply(*lanes[0], 0, gradient, scalars, done); }));
  const UpdateSource source{Rank{3}, 32, 11, step, shard.version(), 0};
  shard.endUpdate({scalars, gradient, {&source, 1}, part});
  return shard.logged();
}

inline std::vector<float> countingGradient(const ParameterStore& store, size_t index) {
  return std::vector<float>(store.shard(index).range().count, -1.f);
}

/// One counting update of all shards, like a round. `written` is called with each part's number in the log;
/// returns the last.
inline uint64_t pushRound(
    ParameterStore& store, Step step, const std::function<void(uint64_t logged)>& written = [](uint64_t) {}) {
  uint64_t logged = 0;
  for (size_t shard = 0; shard < store.shardCount(); shard++) {
    const UpdatePart part = shard + 1 < store.shardCount() ? UpdatePart::continues : UpdatePart::last;
    logged = push(store, shard, countingGradient(store, shard), step, part);
    written(logged);
  }
  return logged;
}

inline DurabilityConfig logConfig() {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::log;
  config.path = "/data";
  config.everySeconds = 0;
  config.keep = 2;
  return config;
}

inline CheckpointSource lockedSource(const std::shared_ptr<ParameterStore>& store) {
  CheckpointSource source;
  source.store = store;
  source.groups = [] { return std::vector<CheckpointSource::Group>{{"locked"}}; };
  return source;
}

/// A daemon's life as far as the disk is concerned: recovers, resumes, pushes, takes checkpoints, until the
/// power fails.
struct Life {
  std::unique_ptr<Durability> durability;
  std::shared_ptr<ParameterStore> store;
  bool fresh = true;
  Status refused;  // why there is no store

  explicit Life(Env& env, uint32_t shards = 2, const DurabilityConfig& config = logConfig()) {
    spdlog::set_level(spdlog::level::off);  // the thousands of crashes are intended
    refused = start(env, shards, config);
  }
  /// False if the base could not be taken: nothing is promised then.
  bool begin() { return durability->begin(lockedSource(store)).ok(); }

 private:
  Status start(Env& env, uint32_t shards, const DurabilityConfig& config) {
    PSD_ASSIGN_OR_RETURN(auto opened, Durability::open(env, config));
    PSD_ASSIGN_OR_RETURN(const auto found, opened->find());
    auto made = makeStore(shards, kCounting);
    fresh = !found;
    if (found) PSD_RETURN_IF_ERROR(opened->restore(*found, *made));
    store = std::move(made);
    durability = std::move(opened);
    return {};
  }
};

/// The whole counting model without padding: every element of a shard has the same count.
inline std::vector<float> counts(ParameterStore& store) {
  std::vector<float> result;
  for (size_t i = 0; i < store.shardCount(); i++) {
    Lanes lanes = store.makeLanes();
    auto view = waitFor<Result<ReadView>>(
        [&](auto done) { store.shard(i).storage().read(*lanes[0], 0, store.shard(i).range().count, done); });
    PSD_REQUIRE_OK(view);
    for (float value : view->values) REQUIRE(value == view->values[0]);
    result.push_back(view->values[0]);
  }
  return result;
}

}  // namespace psd::testing

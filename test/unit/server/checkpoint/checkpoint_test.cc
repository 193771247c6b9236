#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/log_format.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/samples_replay.h"
#include "server/checkpoint/store_state.h"
#include "test/support/async_backend.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/unit/server/checkpoint/checkpoint_store.h"

namespace psd::checkpoint_test {
namespace {

using namespace testing;

const std::string kAdam = R"({"type": "adam", "lr": 0.01})";
const std::string kSgd = R"({"type": "sgd", "lr": 1})";

/// A store in which every value is distinct, after a few updates.
std::unique_ptr<ParameterStore> trainedStore(uint32_t shards, const std::string& optimizer,
                                             const TestDevice& device = kCpu) {
  auto store = makeStore(shards, optimizer, kSmallModel, device.make());
  Lanes lanes = store->makeLanes();
  for (size_t i = 0; i < store->shardCount(); i++) {
    Shard& shard = store->shard(i);
    std::vector<float> values(shard.range().count);
    std::iota(values.begin(), values.end(), static_cast<float>(shard.range().begin));
    PSD_REQUIRE_OK(waitFor<Status>([&](auto done) { shard.storage().write(*lanes[0], 0, values, done); }));
    shard.restore({40 + i}, {shard.range().count, {{Rank{1}, 77, Step{9 + i}, Version{40 + i}, 3}}});
    for (size_t k = 0; k <= i; k++) update(*store, i, 0.5f);
  }
  return store;
}

Checkpoint reopened(Env& env, const std::string& folder, uint64_t number) {
  auto checkpoint = openCheckpoint(env, checkpointPath(folder, number));
  PSD_REQUIRE_OK(checkpoint);
  return std::move(*checkpoint);
}

DEVICE_TEST("a checkpoint restores weights, optimizer state, update numbers and the trainers' last pushes") {
  MemoryEnv env;
  auto store = trainedStore(3, kAdam, device);
  PSD_REQUIRE_OK(saveStore(env, "/data", 5, *store));
  const Checkpoint checkpoint = reopened(env, "/data", 5);
  CHECK(checkpoint.manifest.number == 5);
  auto again = makeStore(3, kAdam, kSmallModel, device.make());
  auto restored = restoreStore(env, checkpoint, *again);
  PSD_REQUIRE_OK(restored);
  CHECK(restored->notes.empty());
  CHECK(contentOf(*again) == contentOf(*store));
  for (size_t i = 0; i < 3; i++) {
    CHECK(again->shard(i).version() == store->shard(i).version());
    CHECK(again->shard(i).pushed() == store->shard(i).pushed());
    // The next update is Adam's next t in both.
    update(*again, i, 0.25f);
    update(*store, i, 0.25f);
  }
  CHECK(contentOf(*again) == contentOf(*store));
}

TEST_CASE(
    "a checkpoint can be restored into another number of shards, each with the pushes of its elements") {
  const uint32_t shards = GENERATE(1u, 2u, 5u);
  MemoryEnv env;
  auto store = trainedStore(3, kAdam);
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *store));
  auto again = makeStore(shards, kAdam);
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 1), *again));
  CHECK(contentOf(*again) == contentOf(*store));
  CHECK(again->shard(again->shardCount() - 1).version() == store->shard(2).version());
  // The three saved shards have had different pushes. Each element has those of the shard that it was in.
  for (size_t i = 0; i < again->shardCount(); i++) {
    const Shard& shard = again->shard(i);
    CHECK(shard.divided() == (shard.pushed().ranges().size() > 1));
    for (const PushedRange& range : shard.pushed().ranges()) {
      for (const uint64_t at : {range.begin, range.begin + range.count - 1}) {
        const uint64_t element = shard.range().begin + at;
        for (size_t old = 0; old < 3; old++) {
          const ShardRange& was = store->shard(old).range();
          if (element < was.begin || element >= was.begin + was.count) continue;
          CHECK(range.pushes == store->shard(old).pushed().ranges().front().pushes);
        }
      }
    }
  }
  CHECK((shards > 1 || again->shard(0).pushed().ranges().size() == 3));

  // Saving that and restoring it gives the same.
  PSD_REQUIRE_OK(saveStore(env, "/data", 2, *again));
  auto third = makeStore(shards, kAdam);
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 2), *third));
  for (size_t i = 0; i < third->shardCount(); i++) {
    CHECK(third->shard(i).pushed() == again->shard(i).pushed());
  }
}

TEST_CASE("another optimizer takes the weights and reports what it does not take") {
  MemoryEnv env;
  auto store = trainedStore(2, kAdam);
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *store));
  const std::string other =
      GENERATE(as<std::string>(), R"({"type": "sgd"})", R"({"type": "adam", "amsgrad": true})",
               R"({"type": "adagrad", "initial_accumulator_value": 3})");
  auto again = makeStore(2, other);
  auto restored = restoreStore(env, reopened(env, "/data", 1), *again);
  PSD_REQUIRE_OK(restored);
  CHECK(restored->notes.size() == 1);
  CHECK(contentOf(*again)[0] == contentOf(*store)[0]);
  if (again->optimizer(0).name() == "adam") CHECK(contentOf(*again)[1] == contentOf(*store)[1]);
  if (again->optimizer(0).name() == "adagrad") CHECK(contentOf(*again)[1][0] == 3.f);
}

TEST_CASE("the state of another optimizer starts at its first step, whatever the number of updates") {
  const ModelSpec model{"", {{"w", DType::f32, {96}}}};  // no padding
  MemoryEnv env;
  auto trained = makeStore(2, R"({"type": "sgd", "lr": 0.1})", model);
  for (int i = 0; i < 20; i++) {
    for (size_t shard = 0; shard < 2; shard++) update(*trained, shard, 0.5f);
  }
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *trained));
  const std::string optimizer =
      GENERATE(as<std::string>(), kAdam, R"({"type": "sgd", "momentum": 0.9, "dampening": 0.5})",
               R"({"type": "adagrad", "lr_decay": 0.5})");
  auto fresh = makeStore(2, optimizer, model);
  PSD_REQUIRE_OK(copyParameters(*trained, *fresh));
  auto restored = makeStore(1, optimizer, model);
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 1), *restored));
  const auto updateAgain = [](ParameterStore& store) {
    for (size_t shard = 0; shard < store.shardCount(); shard++) update(store, shard, 0.5f);
  };
  for (int i = 0; i < 3; i++) {
    updateAgain(*fresh);
    updateAgain(*restored);
    REQUIRE(contentOf(*restored) == contentOf(*fresh));
  }
  CHECK(restored->shard(0).version() == Version{23});
  // And continues from there after another checkpoint.
  PSD_REQUIRE_OK(saveStore(env, "/data", 2, *restored));
  auto again = makeStore(3, optimizer, model);
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 2), *again));
  CHECK(again->shard(0).stateSince() == Version{20});
  updateAgain(*fresh);
  updateAgain(*again);
  CHECK(contentOf(*again) == contentOf(*fresh));
}

TEST_CASE("ftrl continues with the weights of another optimizer, and with other penalties by its state") {
  MemoryEnv env;
  auto trained = trainedStore(3, kAdam);
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *trained));
  auto first = makeStore(2, R"({"type": "ftrl", "lr": 0.5, "l1": 0.25})");
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 1), *first));
  const auto before = contentOf(*trained)[0], weights = contentOf(*first)[0];
  for (size_t i = 0; i < before.size(); i++) REQUIRE(weights[i] == Approx(before[i]).epsilon(1e-6));
  PSD_REQUIRE_OK(saveStore(env, "/data", 2, *first));

  // With the numbers it was saved with, ftrl restores the weights as they are. With another l1 it derives
  // them from the state.
  auto same = makeStore(3, R"({"type": "ftrl", "lr": 0.5, "l1": 0.25})");
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 2), *same));
  CHECK(contentOf(*same) == contentOf(*first));
  auto sparser = makeStore(1, R"({"type": "ftrl", "lr": 0.5, "l1": 40.25})");
  PSD_REQUIRE_OK(restoreStore(env, reopened(env, "/data", 2), *sparser));
  CHECK(contentOf(*sparser)[1] == contentOf(*first)[1]);
  // The divisor is (1 + 0) / 0.5.
  const auto fewer = contentOf(*sparser)[0];
  for (size_t i = 0; i < before.size(); i++) {
    REQUIRE(fewer[i] == Approx(std::max(0.f, weights[i] - 20)).margin(1e-4));  // negative ones are near 0
  }
  CHECK(std::ranges::count(fewer, 0.f) > 15);

  auto faster = makeStore(1, R"({"type": "ftrl", "lr": 1, "l1": 0.25})");
  const auto refused = restoreStore(env, reopened(env, "/data", 2), *faster);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message() ==
        "the saved state of optimizer 'ftrl' holds for lr 0.5, and the configuration has 1: set lr to 0.5");
}

TEST_CASE("a checkpoint of another model is rejected with the difference") {
  MemoryEnv env;
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *makeStore(1, kSgd)));
  auto other = makeStore(1, kSgd, {"other", {{"a", DType::f32, {5, 8}}}});
  auto restored = restoreStore(env, reopened(env, "/data", 1), *other);
  REQUIRE_FALSE(restored.ok());
  CHECK(restored.error().code == ErrorCode::modelMismatch);
  CHECK(restored.message().find("a f32[5,8]") != std::string::npos);
}

TEST_CASE("any damaged byte of a checkpoint is found, its file named, and the older one used") {
  MemoryEnv env;
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *makeStore(2, kSgd)));
  PSD_REQUIRE_OK(saveStore(env, "/data", 2, *trainedStore(2, kSgd)));
  const std::string folder = checkpointPath("/data", 2);
  for (const std::string name : {"manifest.json", "shard-00000.safetensors", "shard-00001.safetensors"}) {
    const std::string path = folder + "/" + name, whole = env.bytes(path);
    REQUIRE_FALSE(whole.empty());
    for (size_t at = 0; at < whole.size(); at++) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
      env.put(path, damaged);
      auto newest = newestCheckpoint(env, "/data");
      INFO(name << ", byte " << at);
      REQUIRE(newest.ok());
      REQUIRE(newest->checkpoint);
      REQUIRE(newest->checkpoint->manifest.number == 1);
      REQUIRE(newest->damaged.size() == 1);
      REQUIRE(newest->damaged[0].why.message.find(path) != std::string::npos);
    }
    env.put(path, whole.substr(0, whole.size() - 1));
    REQUIRE(newestCheckpoint(env, "/data")->damaged.size() == 1);
    env.put(path, whole);
  }
  CHECK(newestCheckpoint(env, "/data")->checkpoint->manifest.number == 2);
}

/// The weights in a folder's newest checkpoint; empty if there is none.
std::vector<float> newestWeights(MemoryEnv& env) {
  auto newest = newestCheckpoint(env, "/data");
  PSD_REQUIRE_OK(newest);
  if (!newest->checkpoint) return {};
  auto store = makeStore(2, kSgd);
  PSD_REQUIRE_OK(restoreStore(env, *newest->checkpoint, *store));
  return contentOf(*store)[0];
}

TEST_CASE("a crash at any operation of a checkpoint leaves the previous or the new one, whole") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  const unsigned appended = GENERATE(0u, 7u, 16u);
  const bool first = GENERATE(true, false);
  auto before = makeStore(2, kSgd), after = trainedStore(2, kSgd);
  const auto old = first ? std::vector<float>() : contentOf(*before)[0], young = contentOf(*after)[0];
  bool done = false, sawOld = false, sawYoung = false;
  for (uint64_t point = 0; !done; point++) {
    MemoryEnv env;
    PSD_REQUIRE_OK(env.createFolder("/data"));
    PSD_REQUIRE_OK(env.syncFolder("/"));
    if (!first) PSD_REQUIRE_OK(saveStore(env, "/data", 1, *before));
    env.crashAt(env.operations().size() + point, appended);
    const bool saved = saveStore(env, "/data", 2, *after).ok();
    done = saved && pruneCheckpoints(env, "/data", 1).ok();
    env.restart(survival);
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    const std::vector<float> found = newestWeights(env);
    sawOld |= found == old;
    sawYoung |= found == young;
    if (saved) {
      REQUIRE(found == young);
    } else {
      REQUIRE((found == old || found == young));
    }
    // What the crash left behind does not block the next one.
    PSD_REQUIRE_OK(saveStore(env, "/data", 3, *after));
    PSD_REQUIRE_OK(pruneCheckpoints(env, "/data", 1));
    REQUIRE(env.list("/data").value() == std::vector<std::string>{"checkpoint-0000000003"});
  }
  CHECK(sawOld);
  CHECK(sawYoung);
}

TEST_CASE("a disk failure at any operation loses only the checkpoint in progress") {
  const std::string reason = GENERATE("No space left on device", "Read-only file system");
  const std::set<std::string> failing = GENERATE(
      std::set<std::string>{"append"}, std::set<std::string>{"sync"}, std::set<std::string>{"create"},
      std::set<std::string>{"rename"}, std::set<std::string>{"createFolder"}, std::set<std::string>{});
  MemoryEnv env;
  auto before = makeStore(2, kSgd), after = trainedStore(2, kSgd);
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *before));
  env.fail(failing, reason);
  const Status failed = saveStore(env, "/data", 2, *after);
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.message().find(reason) != std::string::npos);
  CHECK(newestWeights(env) == contentOf(*before)[0]);
  env.heal();
  PSD_REQUIRE_OK(saveStore(env, "/data", 3, *after));
  CHECK(newestWeights(env) == contentOf(*after)[0]);
}

TEST_CASE("a checkpoint whose folder cannot be synced is not found, not even with its manifest in place") {
  uint64_t failures = 0;
  for (uint64_t skip = 0;; skip++) {
    INFO("failing after " << skip);
    MemoryEnv env;
    auto before = makeStore(2, kSgd), after = trainedStore(2, kSgd);
    PSD_REQUIRE_OK(saveStore(env, "/data", 1, *before));
    env.fail({"syncFolder"}, "No space left on device", skip);
    if (saveStore(env, "/data", 2, *after).ok()) break;
    failures++;
    CHECK(newestWeights(env) == contentOf(*before)[0]);
  }
  CHECK(failures >= 3);  // of the data folder, of the checkpoint's files, of its manifest
}

TEST_CASE("the newest checkpoints are kept, unfinished ones are removed") {
  MemoryEnv env;
  auto store = makeStore(1, kSgd);
  for (uint64_t number = 1; number <= 5; number++) PSD_REQUIRE_OK(saveStore(env, "/data", number, *store));
  PSD_REQUIRE_OK(env.remove(checkpointPath("/data", 4) + "/manifest.json"));
  PSD_REQUIRE_OK(env.createFolder(checkpointPath("/data", 6)));  // in progress
  env.put("/data/notes.txt", "somebody else's");
  PSD_REQUIRE_OK(pruneCheckpoints(env, "/data", 2));
  CHECK(listCheckpoints(env, "/data", false).value() == std::vector<uint64_t>{3, 5, 6});
  CHECK(listCheckpoints(env, "/data", true).value() == std::vector<uint64_t>{3, 5});
  CHECK(env.exists("/data/notes.txt").value());
}

TEST_CASE("numbers of checkpoints do not wrap") {
  MemoryEnv env;
  PSD_REQUIRE_OK(env.createFolder("/data/checkpoint-18446744073709551615"));
  PSD_REQUIRE_OK(env.createFolder("/data/checkpoint-9223372036854775808"));
  PSD_REQUIRE_OK(env.createFolder("/data/checkpoint-0000000007"));
  CHECK(listCheckpoints(env, "/data", false).value() == std::vector<uint64_t>{7});
  PSD_REQUIRE_OK(env.createFolder(checkpointPath("/data", kFileNumberMax)));
  const uint64_t next = listCheckpoints(env, "/data", false).value().back() + 1;
  const auto none = CheckpointWriter::begin(env, "/data", next);
  REQUIRE_FALSE(none.ok());
  CHECK(none.message() ==
        "'/data/checkpoint-9223372036854775807' leaves no number for another checkpoint; move it away");
}

TEST_CASE("a folder that is missing or empty holds no checkpoint") {
  MemoryEnv env;
  CHECK_FALSE(newestCheckpoint(env, "/nowhere")->checkpoint);
  PSD_REQUIRE_OK(env.createFolder("/empty"));
  CHECK_FALSE(newestCheckpoint(env, "/empty")->checkpoint);
}

TEST_CASE("an export holds the model under its tensors' names") {
  MemoryEnv env;
  auto store = trainedStore(3, kAdam);
  PSD_REQUIRE_OK(saveStore(env, "/data", 1, *store));
  PSD_REQUIRE_OK(exportCheckpoint(env, reopened(env, "/data", 1), "/model.safetensors"));
  PSD_REQUIRE_OK(saveParameters(env, "/direct.safetensors", *store));
  CHECK(env.bytes("/model.safetensors") == env.bytes("/direct.safetensors"));
}

TEST_CASE("the error of an invalid manifest names the defect") {
  auto store = makeStore(1, kSgd);
  Manifest manifest = describeStore(*store, {"locked"});
  manifest.shards[0].file = "shard-00000.safetensors";
  manifest.shards[0].pushed = {manifest.shards[0].range.count,
                               {{Rank{2}, UINT64_MAX, Step{3}, Version{4}, 5}}};
  PSD_REQUIRE_OK(parseManifest(formatManifest(manifest), "m"));
  CHECK(parseManifest(formatManifest(manifest), "m")->shards[0].pushed == manifest.shards[0].pushed);
  const auto problem = [&](auto change) {
    Manifest wrong = manifest;
    change(wrong);
    auto parsed = parseManifest(formatManifest(wrong), "m");
    REQUIRE_FALSE(parsed.ok());
    return parsed.message();
  };
  CHECK(problem([](Manifest& m) { m.shards[0].file = "../escape"; }).find("shards[0].file") !=
        std::string::npos);
  CHECK(problem([](Manifest& m) { m.shards[0].range.count += 16; }).find("elements") != std::string::npos);
  CHECK(problem([](Manifest& m) { m.shards[0].range.group = 1; }).find("shards[0].group") !=
        std::string::npos);
  CHECK(problem([](Manifest& m) { m.model.tensors.clear(); }).find("tensor") != std::string::npos);
  CHECK(parseManifest("", "m").message() == "'m' is not a manifest that psd can read: it is truncated");
}

TEST_CASE("a manifest holds the sample plan, if there is one") {
  auto store = trainedStore(2, kSgd);
  Manifest manifest = describeStore(*store, {"locked"});
  for (ManifestShard& shard : manifest.shards) shard.file = "shard.safetensors";
  CHECK_FALSE(parseManifest(formatManifest(manifest), "m")->samples);

  SamplePlan plan;
  PSD_REQUIRE_OK(plan.begin(10, 3, 1));
  const TrainerProcess process{Rank{1}, 77};
  for (uint64_t step : {1, 2, 3}) plan.take(ProcessId{1}, process, Step{step}, 4);
  plan.returnSamples(ProcessId{1}, Step{1});
  plan.beginShard();
  plan.done(ProcessId{1}, Step{2});
  manifest.samples = plan.saved();
  const auto parsed = parseManifest(formatManifest(manifest), "m");
  PSD_REQUIRE_OK(parsed);
  CHECK(parsed->samples == manifest.samples);

  manifest.samples->underWay[0].range.count = 5;
  CHECK(parseManifest(formatManifest(manifest), "m").message() ==
        "'m' is not a manifest that psd can read: the sample plan is inconsistent: sample 8 of epoch 1, "
        "or one after it, appears twice");
}

TEST_CASE("of a restored plan the samples that all shards hold are done") {
  auto store = trainedStore(2, kSgd);
  Manifest manifest = describeStore(*store, {"locked"});
  const TrainerProcess process{Rank{1}, 77};
  // Shard 0 has steps 9 and 8, shard 1 steps 10 and 9; neither has 7.
  manifest.shards[0].pushed = {manifest.shards[0].range.count,
                               {{process.rank, process.incarnation, Step{9}, Version{5}, 0, 0b01}}};
  manifest.shards[1].pushed = {manifest.shards[1].range.count,
                               {{process.rank, process.incarnation, Step{10}, Version{5}, 0, 0b01}}};
  SamplePlan plan;
  PSD_REQUIRE_OK(plan.begin(60, 1));
  for (uint64_t step : {7, 8, 9, 10, 11}) plan.take(ProcessId{1}, process, Step{step}, 10);
  manifest.samples = plan.saved();
  SamplesReplay replay(manifest);
  const SamplePlan before = SamplesReplay(manifest).finish();
  CHECK(before.doneCount() == 20);      // step 9; and 8, which shard 1 has dropped
  CHECK(before.underWayCount() == 20);  // 10, which shard 0 may still get, and 11
  const auto source = [&](uint64_t step) {
    return std::vector<UpdateSource>{{process.rank, 10, process.incarnation, Step{step}, Version{4}, 0}};
  };
  replay.update(ShardId{0}, source(10));
  PSD_REQUIRE_OK(replay.assign({plan.terms(), {{Step{12}, {0, 50, 10}}, process, 6}}));
  for (uint32_t shard : {0, 1}) replay.update(ShardId{shard}, source(12));
  const SamplePlan after = std::move(replay).finish();
  CHECK(after.doneCount() == 40);
  CHECK(after.underWayCount() == 0);  // later steps are in all shards, so missing ones were dropped
}

}  // namespace
}  // namespace psd::checkpoint_test

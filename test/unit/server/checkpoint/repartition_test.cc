// The saved state of some daemons, divided for another number of daemons.

#include "server/checkpoint/repartition.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/plan/model_partitions.h"
#include "common/types/row_hash.h"
#include "server/checkpoint/replay.h"
#include "server/checkpoint/store_at_rest.h"
#include "server/checkpoint/whole.h"
#include "test/unit/server/checkpoint/daemon_life.h"

namespace psd::repartition_test {
namespace {

using namespace testing;

constexpr uint64_t kIds = 60;
const ModelSpec kModel{"m",
                       {{"a", DType::f32, {40, 16}}, {"b", DType::f32, {7}}, {"c", DType::f32, {64, 4}}},
                       {{"item", 3, {RowInitial::Kind::uniform, 1.f, 5}}}};
const std::string kAdam = R"({"type": "adam", "lr": 0.1})";

/// A daemon's part of the model, and its offset in the whole.
struct Part {
  std::shared_ptr<ParameterStore> store;
  uint64_t begin = 0;
};

std::vector<Part> partsOf(uint32_t daemons, const std::string& optimizer = kAdam,
                          const ModelSpec& model = kModel) {
  const auto partitions = partitionModel(model, daemons);
  PSD_REQUIRE_OK(partitions);
  std::vector<Part> parts;
  for (const ModelPartition& partition : *partitions) {
    parts.push_back({makeStore(2, optimizer, partition.spec), partition.begin});
  }
  return parts;
}

/// One step of training, with gradients determined by the positions in the whole model and by the ids of
/// rows. `rowsStep`: the step that the row shards record.
void train(const Part& part, Step step, std::optional<Step> rowsStep = {}) {
  ParameterStore& store = *part.store;
  for (size_t i = 0; i < store.shardCount(); i++) {
    std::vector<float> gradient(store.shard(i).range().count);
    for (size_t k = 0; k < gradient.size(); k++) {
      const uint64_t place = part.begin + store.shard(i).range().begin + k;
      gradient[k] = static_cast<float>((place * 37 + step.value) % 101) - 50.f;
    }
    push(store, i, gradient, step);
  }
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    RowShard& shard = store.rowShard(i);
    std::vector<uint64_t> ids;
    std::vector<float> gradients;
    for (uint64_t id = 0; id < kIds; id++) {
      const Partition& partition = store.model().partition;
      if (partitionOf(rowHash(id), partition.of) != partition.index) continue;
      if (!shard.hashes().contains(rowHash(id)) || id % 5 == step.value % 5) continue;
      ids.push_back(id);
      gradients.insert(gradients.end(), 3, static_cast<float>(id) - 20.f);
    }
    const RowRun run{0, static_cast<uint32_t>(ids.size())};
    const uint64_t number = shard.beginExclusiveUpdate();
    const UpdateScalars scalars = shard.scalars(number);
    PSD_REQUIRE_OK(shard.update({{{&run, 1}, ids}, gradients, nullptr}, {}, scalars));
    const UpdateSource source{Rank{3}, 32, 11, rowsStep.value_or(step), shard.version(), 0};
    shard.endUpdate({scalars, gradients, {&source, 1}});
  }
}

Manifest manifestOf(const ParameterStore& store) { return describeStore(store, {"locked"}); }

std::string folderOf(size_t part) { return "/saved-" + std::to_string(part); }

/// Saves each part; returns the folders.
std::vector<std::string> save(Env& env, const std::vector<Part>& parts,
                              const std::optional<SavedSamples>& samples = {}) {
  std::vector<std::string> folders;
  for (size_t i = 0; i < parts.size(); i++) {
    folders.push_back(folderOf(i));
    PSD_REQUIRE_OK(saveAtRest(env, folders.back(), 7, *parts[i].store, manifestOf(*parts[i].store).groups,
                              Consistency::perShard, i == 0 ? samples : std::nullopt));
  }
  return folders;
}

Result<Repartitioned> divide(Env& env, const std::vector<std::string>& folders, uint32_t daemons,
                             bool together = false) {
  PSD_ASSIGN_OR_RETURN(SavedPartitions saved, SavedPartitions::take(env, folders, together));
  return repartition(env, saved, daemons, "/new");
}

/// The states that the new daemons resume from.
std::vector<Part> opened(Env& env, const Repartitioned& done) {
  std::vector<Part> parts;
  uint64_t begin = 0;
  for (const WrittenPartition& written : done.partitions) {
    const auto newest = newestCheckpoint(env, written.folder);
    PSD_REQUIRE_OK(newest);
    REQUIRE(newest->checkpoint);
    auto store = openStore(env, *newest->checkpoint);
    PSD_REQUIRE_OK(store);
    parts.push_back({std::move(*store), begin});
    begin += ModelLayout(written.model).totalElements();
  }
  return parts;
}

/// All planes of all elements in the whole model's order, then the values of all rows.
std::vector<std::vector<float>> contentOf(const std::vector<Part>& parts) {
  std::vector<std::vector<float>> all;
  std::vector<float> rows(kIds * 3);
  for (const Part& part : parts) {
    const auto planes = testing::contentOf(*part.store);
    all.resize(planes.size());
    for (size_t i = 0; i < planes.size(); i++)
      all[i].insert(all[i].end(), planes[i].begin(), planes[i].end());
    for (uint64_t id = 0; id < kIds; id++) {
      const Partition& partition = part.store->model().partition;
      if (partitionOf(rowHash(id), partition.of) != partition.index) continue;
      for (size_t i = 0; i < part.store->rowShardCount(); i++) {
        const RowShard& shard = part.store->rowShard(i);
        const RowRun run{0, 1};
        if (shard.hashes().contains(rowHash(id))) {
          CHECK(shard.gather({{&run, 1}, {&id, 1}}, std::span(rows).subspan(id * 3, 3)) == 1);
        }
      }
    }
  }
  all.push_back(std::move(rows));
  return all;
}

TEST_CASE("from any number of daemons to any other, training continues as it would have") {
  const uint32_t before = GENERATE(1u, 2u, 3u, 5u), after = GENERATE(1u, 2u, 3u, 4u);
  if (before == after) return;
  INFO(before << " to " << after);
  MemoryEnv env;
  std::vector<Part> alone = partsOf(1), parts = partsOf(before);
  for (uint64_t step = 1; step <= 3; step++) {
    train(alone.front(), Step{step});
    for (const Part& part : parts) train(part, Step{step});
  }
  std::vector<std::string> folders = save(env, parts);
  std::ranges::reverse(folders);
  const auto done = divide(env, folders, after);
  PSD_REQUIRE_OK(done);
  CHECK(done->notes.empty());
  CHECK(env.operations().back() == "syncFolder /");
  parts = opened(env, *done);
  REQUIRE(parts.size() == after);
  CHECK((contentOf(parts) == contentOf(alone)));
  train(alone.front(), Step{4});
  for (const Part& part : parts) train(part, Step{4});
  CHECK((contentOf(parts) == contentOf(alone)));
}

/// Two daemons, of which the first has a log with updates after its checkpoint.
std::vector<std::string> saveWithLog(MemoryEnv& env, const std::vector<Part>& parts) {
  for (const Part& part : parts) train(part, Step{1});
  std::vector<std::string> folders = save(env, {parts.begin() + 1, parts.end()});
  DurabilityConfig config = logConfig();
  config.path = "/logged";
  const auto durability = Durability::open(env, config);
  PSD_REQUIRE_OK(durability);
  PSD_REQUIRE_OK((*durability)->begin(lockedSource(parts.front().store)));
  TestLoop loop;
  for (size_t i = 0; i < parts.front().store->shardCount(); i++) {
    const uint64_t logged = push(*parts.front().store, i, countingGradient(*parts.front().store, i), Step{2});
    loop.wait(parts.front().store->shard(i).whenDurable(logged));
  }
  folders.push_back(config.path);
  return folders;
}

TEST_CASE("whenever the machine fails, there are folders for all daemons or for none") {
  const Survival survival = GENERATE(Survival::syncedOnly, Survival::everything, Survival::namesWithoutData);
  const ModelSpec dense{"m", kModel.tensors};
  spdlog::set_level(spdlog::level::off);
  size_t whole = 0, none = 0;
  for (uint64_t moment = 0;; moment++) {
    INFO("operation " << moment);
    MemoryEnv disk;
    const std::vector<Part> parts = partsOf(2, kAdam, dense);
    const auto folders = saveWithLog(disk, parts);
    disk.restart(Survival::everything);
    disk.crashAt(moment, 8);
    const bool done = divide(disk, folders, 3).ok();
    const bool crashed = disk.crashed();
    disk.restart(survival);
    const auto there = disk.exists("/new");
    PSD_REQUIRE_OK(there);
    CHECK((*there || !done));
    (*there ? whole : none)++;
    if (*there) {
      for (size_t i = 0; i < 3; i++) {
        const auto newest = newestCheckpoint(disk, "/new/partition-" + std::to_string(i));
        PSD_REQUIRE_OK(newest);
        CHECK((newest->checkpoint && newest->damaged.empty()));
      }
    } else if (moment % 4 == 0) {
      // The old folders are intact: a second attempt succeeds.
      const auto again = divide(disk, folders, 3);
      PSD_REQUIRE_OK(again);
      CHECK((contentOf(opened(disk, *again)) == contentOf(parts)));
    }
    if (!crashed) break;
  }
  CHECK(whole > 0);
  CHECK(none > 0);
}

TEST_CASE("a model that cannot be cut for that many daemons is rejected") {
  MemoryEnv env;
  const ModelSpec tiny{"tiny", {{"a", DType::f32, {3}}, {"b", DType::f32, {3}}}};
  const Status refused = divide(env, save(env, partsOf(2, kAdam, tiny)), 3).status();
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message().find("cannot be cut for 3 daemons") != std::string::npos);
  CHECK_FALSE(env.exists("/new").value());
}

TEST_CASE("if a write fails nothing is left of the result") {
  MemoryEnv env;
  const auto folders = save(env, partsOf(2));
  env.fail({"rename"}, "No space left on device");
  CHECK(divide(env, folders, 3).message().find("No space left") != std::string::npos);
  env.heal();
  const auto names = env.list("/");
  PSD_REQUIRE_OK(names);
  CHECK(std::ranges::none_of(*names, [](const std::string& name) { return name.starts_with("new"); }));
  PSD_REQUIRE_OK(divide(env, folders, 3));
}

TEST_CASE("samples in flight are assigned again, and finished ones stay done") {
  MemoryEnv env;
  const TrainerProcess process{Rank{0}, 11};
  SamplePlan plan;
  PSD_REQUIRE_OK(plan.begin(100, 2));
  for (uint64_t step = 1; step <= 3; step++) REQUIRE(plan.take(ProcessId{1}, process, Step{step}, 10));
  plan.done(ProcessId{1}, Step{1});
  const auto done = divide(env, save(env, partsOf(2), plan.saved()), 1);
  PSD_REQUIRE_OK(done);
  REQUIRE(done->notes.size() == 1);
  CHECK(done->notes.front() == "20 samples of unfinished assignments are assigned again");
  const auto manifest = readManifest(env, checkpointPath(done->partitions.front().folder, 1));
  PSD_REQUIRE_OK(manifest);
  REQUIRE(manifest->samples);
  CHECK(manifest->samples->underWay.empty());
  CHECK(manifest->samples->free.covered() == 190);
  CHECK(manifest->samples->assignments == 3);
}

TEST_CASE("differences in what daemons know of trainers are reported") {
  MemoryEnv env;
  const std::vector<Part> parts = partsOf(2);
  train(parts[0], Step{1});
  train(parts[0], Step{2});
  train(parts[1], Step{1});
  if (GENERATE(false, true)) train(parts[1], Step{2}, Step{1});  // only its rows lack a push
  const auto folders = save(env, parts);
  PSD_REQUIRE_OK(writeDeparted(env, folders[0], {3, {Rank{0}, Rank{2}}}));
  PSD_REQUIRE_OK(writeDeparted(env, folders[1], {3, {Rank{2}, Rank{1}}}));
  const auto done = divide(env, folders, 3);
  PSD_REQUIRE_OK(done);
  REQUIRE(done->notes.size() == 3);
  CHECK(done->notes[0] ==
        "of rank 3 some shards have the pushes up to step 2, others up to step 1; this remains so");
  CHECK(done->notes[1].starts_with("rank 0 finished according to some daemons"));
  for (const WrittenPartition& written : done->partitions) {
    const auto departed = readDeparted(env, written.folder);
    PSD_REQUIRE_OK(departed);
    CHECK(*departed == Departed{3, {Rank{2}}});
  }
}

TEST_CASE("folders of different runs are not combined") {
  MemoryEnv env;
  const auto mixed = [&](const std::vector<Part>& one, const std::vector<Part>& other) {
    save(env, {one[0]});
    PSD_REQUIRE_OK(saveAtRest(env, "/other", 1, *other[1].store, manifestOf(*other[1].store).groups,
                              Consistency::perShard, {}));
    const Status done = divide(env, {"/saved-0", "/other"}, 3).status();
    env.vanish("/saved-0");
    env.vanish("/other");
    CHECK(done.error().code == ErrorCode::invalidArgument);
    return done.message();
  };
  const std::vector<Part> parts = partsOf(2);
  ModelSpec model = kModel;
  model.name = "other";
  CHECK(mixed(parts, partsOf(2, kAdam, model)) ==
        "'/saved-0' and '/other' are of different models: 'm' and 'other'");
  model = kModel;
  model.tables.front().dim = 4;
  CHECK(mixed(parts, partsOf(2, kAdam, model)).find("has different tables") != std::string::npos);
  model = kModel;
  model.tensors.front().shape = {70, 16};
  CHECK(mixed(parts, partsOf(2, kAdam, model)).find("'a[") != std::string::npos);
  model = kModel;
  model.tensors.push_back({"d", DType::f32, {1000}});
  model.tensors.front().shape = {72, 16};
  CHECK(mixed(parts, partsOf(2, kAdam, model)).find("of different models: ") != std::string::npos);
  CHECK(mixed(parts, partsOf(2, kCounting)) ==
        "'/saved-0' and '/other' are of different runs: the one has locked with adam, the other locked with "
        "sgd");
}

TEST_CASE("names of the whole model refer to the model and the partition that the folder belongs to") {
  MemoryEnv env;
  ModelSpec model = kModel;
  model.tensors.front().shape = {16, 40};
  const std::vector<Part> parts = partsOf(2), others = partsOf(2, kAdam, model);
  const auto folders = save(env, parts);
  WholeCheckpoint whole{"then", {{7, 0, 0}, {3, 0, 0}}, {}};
  const auto named = [&](ParameterStore& store) {
    const std::string path = checkpointPath(folders[1], 3);
    if (env.exists(path).value()) env.vanish(path);
    PSD_REQUIRE_OK(
        saveAtRest(env, folders[1], 3, store, manifestOf(store).groups, Consistency::perShard, {}));
    for (size_t i = 0; i < folders.size(); i++) {
      whole.parts[i].crc = manifestCrc(env, checkpointPath(folders[i], whole.parts[i].number)).value();
    }
    PSD_REQUIRE_OK(writeWhole(env, folders[0], whole));
    return divide(env, folders, 3, true);
  };
  const Status other = named(*others[1].store).status();
  CHECK(other.error().code == ErrorCode::invalidArgument);
  CHECK(other.message().find("'/saved-1/checkpoint-0000000003', of the whole model, and "
                             "'/saved-1/checkpoint-0000000007' are of different models: tensor") == 0);
  CHECK(named(*parts[0].store).message().find("the first is partition 0 of 2") != std::string::npos);
  CHECK_FALSE(env.exists("/new").value());
  PSD_REQUIRE_OK(named(*parts[1].store));
}

}  // namespace
}  // namespace psd::repartition_test

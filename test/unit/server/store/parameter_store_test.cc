#include "server/store/parameter_store.h"

#include <limits>
#include <numeric>
#include <vector>

#include <malloc.h>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/storage_calls.h"
#include "test/support/temp_dir.h"

namespace psd::parameter_store_test {
namespace {

using testing::Random;
using testing::StorageCalls;
using testing::TempDir;

const ModelSpec kModel{"mlp",
                       {{"fc1.weight", DType::f32, {13, 29}},
                        {"fc1.bias", DType::f32, {13}},
                        {"scale", DType::f32, {}},
                        {"fc2.weight", DType::f32, {5, 13}}}};

std::unique_ptr<ParameterStore> storeOf(const ModelSpec& model, uint32_t shards, size_t backends = 1) {
  std::vector<std::shared_ptr<Backend>> all;
  for (size_t i = 0; i < backends; i++) all.push_back(makeCpuBackend());
  auto store = ParameterStore::create(model, shards, all, Optimizer{});
  PSD_REQUIRE_OK(store);
  return std::move(*store);
}

/// The whole arena, padding included.
std::vector<float> valuesOf(ParameterStore& store) {
  std::vector<float> all;
  auto backend = makeCpuBackend();
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    auto view = StorageCalls(*backend, shard.storage()).read(0, shard.range().count);
    PSD_REQUIRE_OK(view);
    all.insert(all.end(), view->values.begin(), view->values.end());
  }
  return all;
}

void fill(ParameterStore& store, const std::vector<float>& values) {
  auto backend = makeCpuBackend();
  for (size_t i = 0; i < store.shardCount(); i++) {
    const ShardRange& range = store.shard(i).range();
    PSD_REQUIRE_OK(StorageCalls(*backend, store.shard(i).storage())
                       .write(0, std::span(values).subspan(range.begin, range.count)));
  }
}

/// Distinct in every element of the model, zero in the padding.
std::vector<float> someValues(const ModelSpec& model) {
  const ModelLayout layout(model);
  std::vector<float> values(layout.totalElements());
  float next = 1;
  for (const TensorPlace& place : layout.places()) {
    for (uint64_t i = 0; i < place.count; i++) values[place.begin + i] = next++;
  }
  return values;
}

Status load(const std::string& path, ParameterStore& store) {
  auto env = makePosixEnv();
  PSD_ASSIGN_OR_RETURN(auto file, SafetensorsReader::open(*env, path));
  return loadParameters(file, store);
}

void save(const std::string& path, ParameterStore& store) {
  auto env = makePosixEnv();
  PSD_REQUIRE_OK(saveParameters(*env, path, store));
}

/// A file of `model` with all values from 1 on.
std::string saved(const TempDir& folder, const ModelSpec& model) {
  auto store = storeOf(model, 1);
  fill(*store, someValues(model));
  save(folder.file("model.safetensors"), *store);
  return folder.file("model.safetensors");
}

TEST_CASE("a store has the plan's shards, spread over its backends in turn") {
  auto store = storeOf(kModel, 5, 2);
  CHECK(store->plan().shards == ShardPlan::make(ModelLayout(kModel).totalElements(), 5).shards);
  REQUIRE(store->shardCount() == 5);
  for (size_t i = 0; i < 5; i++) {
    CHECK(store->shard(i).range() == store->plan().shards[i]);
    CHECK(store->shard(i).device() == i % 2);
    CHECK(store->shard(i).storage().elementCount() == store->plan().shards[i].count);
  }
  CHECK(store->describeDevices() == "cpu, cpu");
  CHECK(store->makeLanes().size() == 2);
  CHECK(valuesOf(*store) == std::vector<float>(store->layout().totalElements(), 0.f));
}

TEST_CASE("with more backends than shards some stay empty") {
  auto store = storeOf({"", {{"w", DType::f32, {3}}}}, 4, 3);
  CHECK(store->shardCount() == 1);
  CHECK(store->describeDevices() == "cpu, cpu, cpu");
}

TEST_CASE("a store of a bad model or beyond its limits is rejected") {
  auto none = ParameterStore::create({}, 1, {makeCpuBackend()}, Optimizer{});
  REQUIRE_FALSE(none.ok());
  CHECK(none.message() == "the model has neither tensors nor tables");
  auto huge = ParameterStore::create({"", {{"w", DType::f32, {uint64_t{1} << 40}}}}, 1, {makeCpuBackend()},
                                     Optimizer{});
  REQUIRE_FALSE(huge.ok());
  CHECK(huge.error().code == ErrorCode::overloaded);
}

TEST_CASE("a shard has the largest learning rate of its newest update, if its push carried some") {
  const auto store = storeOf(kModel, 1);
  Shard& shard = store->shard(0);
  CHECK_FALSE(shard.pushedRate());
  const Hyperparameters carried{{{0.125, 0, 0, 0}, {0.25, 0, 0, 0}}, {{shard.range().count, 0}}};
  shard.notePushed(&carried);
  CHECK(shard.pushedRate() == 0.25);
  shard.notePushed(nullptr);
  CHECK_FALSE(shard.pushedRate());
}

TEST_CASE("parameters are saved and loaded by name, for any number of shards") {
  const std::vector<float> values = someValues(kModel);
  for (uint32_t from : {1, 3, 7}) {
    for (uint32_t to : {1, 2, 5, 30}) {
      INFO("from " << from << " shards to " << to);
      const TempDir folder;
      auto source = storeOf(kModel, from, 2);
      fill(*source, values);
      save(folder.file("x"), *source);
      auto target = storeOf(kModel, to, 3);
      PSD_REQUIRE_OK(load(folder.file("x"), *target));
      CHECK(valuesOf(*target) == values);
    }
  }
}

#if defined(__GLIBC__) && !defined(PSD_SANITIZE_ADDRESS) && !defined(PSD_SANITIZE_THREAD)
TEST_CASE("tables without rows take no more than they are counted with") {
  constexpr uint32_t kTables = 300, kRowShards = 16;
  ModelSpec model{"", {}, {}};
  for (uint32_t i = 0; i < kTables; i++) model.tables.push_back({std::to_string(i), 1 + i % 40 * 100, {}});
  const StoreGroups groups{{}, {{Adam{}, 1.0, {}}}, std::vector<uint32_t>(kTables, 0), kRowShards};
  const auto inUse = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const uint64_t before = inUse();
  const auto store = ParameterStore::create(model, 1, {makeCpuBackend()}, groups);
  PSD_REQUIRE_OK(store);
  const uint64_t taken = inUse() - before,
                 empty = kRowShards * (kTables * RowTable::kEmptyBytes + kEmptyRowShardBytes);
  INFO(taken << " bytes for " << kTables * kRowShards << " tables in row shards");
  CHECK(taken < empty);
  CHECK((*store)->rowShard(0).size().indexBytes >= kTables * RowTable::kEmptyBytes);
}
#endif

TEST_CASE("large tensors are saved and loaded piece by piece") {
  const ModelSpec model{"", {{"small", DType::f32, {5}}, {"large", DType::f32, {3, 1'000'003}}}};
  const std::vector<float> values = someValues(model);
  const TempDir folder;
  auto source = storeOf(model, 2);
  fill(*source, values);
  save(folder.file("x"), *source);
  auto target = storeOf(model, 3);
  PSD_REQUIRE_OK(load(folder.file("x"), *target));
  CHECK(valuesOf(*target) == values);
}

TEST_CASE("a file's order of tensors, and tensors that the model lacks, do not matter") {
  const TempDir folder;
  const std::string path =
      saved(folder, {"", {{"c", DType::f32, {20}}, {"extra", DType::f32, {3}}, {"a", DType::f32, {2}}}});
  auto store = storeOf({"", {{"a", DType::f32, {2}}, {"c", DType::f32, {20}}}}, 2);
  PSD_REQUIRE_OK(load(path, *store));
  std::vector<float> expected(48, 0.f);
  expected[0] = 24, expected[1] = 25;
  std::iota(expected.begin() + 16, expected.begin() + 36, 1.f);
  CHECK(valuesOf(*store) == expected);
}

TEST_CASE("a file that does not match the model is rejected with tensor and file") {
  const TempDir folder;
  const std::string path = saved(folder, {"", {{"a", DType::f32, {2, 3}}}});
  auto refusal = [&](const ModelSpec& model) {
    auto store = storeOf(model, 1);
    Status status = load(path, *store);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::modelMismatch);
    return status.message();
  };
  CHECK(refusal({"", {{"b", DType::f32, {2, 3}}}}) == "tensor b f32[2,3]: not in '" + path + "'");
  CHECK(refusal({"", {{"a", DType::f32, {3, 2}}}}) == "tensor a f32[3,2]: is a f32[2,3] in '" + path + "'");
}

TEST_CASE("values that are not finite are not loaded") {
  const ModelSpec model{"", {{"a", DType::f32, {100}}, {"b", DType::f32, {100}}}};
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const TempDir folder;
    auto source = storeOf(model, 1);
    std::vector<float> values = someValues(model);
    values[ModelLayout(model).places()[1].begin + 77] = bad;
    fill(*source, values);
    save(folder.file("x"), *source);
    auto target = storeOf(model, 3);
    Status status = load(folder.file("x"), *target);
    REQUIRE_FALSE(status.ok());
    CHECK(status.message() == "tensor b f32[100]: holds NaN or infinity in '" + folder.file("x") + "'");
  }
}

TEST_CASE("parameters that cannot be saved leave the old file unchanged and name the path") {
  const TempDir folder;
  auto store = storeOf(kModel, 1);
  auto env = makePosixEnv();
  Status status = saveParameters(*env, folder.file("missing/x"), *store);
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::io);
  CHECK_THAT(status.message(), Catch::Contains(folder.file("missing/x")));
}

}  // namespace
}  // namespace psd::parameter_store_test

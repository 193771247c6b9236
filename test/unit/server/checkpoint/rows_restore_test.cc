// Rows written to a checkpoint and restored from it.

#include "server/checkpoint/rows_restore.h"

#include <memory>
#include <numeric>
#include <vector>

#include "server/checkpoint/rows_copy.h"
#include "server/store/parameter_store.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"

namespace psd::rows_restore_test {
namespace {

using testing::MemoryEnv;

constexpr uint32_t kRows = 100;

std::unique_ptr<ParameterStore> makeStore() {
  const ModelSpec model{"m", {}, {{"item", 4, {RowInitial::Kind::uniform, 1.f, 5}}}};
  auto store =
      ParameterStore::create(model, 1, {makeCpuBackend()}, {{}, {Optimizer{Sgd{}, 1.0, {}}}, {0}, 1});
  PSD_REQUIRE_OK(store);
  return std::move(*store);
}

std::vector<uint64_t> allIds() {
  std::vector<uint64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  return ids;
}

void updateAll(RowShard& shard) {
  const RowRun run{0, kRows};
  const std::vector<uint64_t> ids = allIds();
  const std::vector<float> gradients(kRows * 4, 1.f);
  const uint64_t number = shard.beginExclusiveUpdate();
  PSD_REQUIRE_OK(shard.update({{{&run, 1}, ids}, gradients, nullptr}, {}, shard.scalars(number)));
  shard.endUpdate();
}

/// A checkpoint of the store's row shard, during which `meanwhile` runs.
template <class Work>
Checkpoint save(MemoryEnv& env, ParameterStore& store, bool live, Work meanwhile) {
  PSD_REQUIRE_OK(env.createFolder("/saved"));
  auto writer = CheckpointWriter::begin(env, "/saved", 1);
  PSD_REQUIRE_OK(writer);
  RowShard& shard = store.rowShard(0);
  ManifestRowShard entry;
  entry.range = shard.range();
  entry.version = shard.version();
  entry.tables = {0};
  double pauseSeconds = 0;
  {
    RowsCopy copy(shard, live);
    meanwhile();
    for (bool more = true; more;) {
      const auto left = copy.writeSome(*writer, store, entry, pauseSeconds);
      PSD_REQUIRE_OK(left);
      more = *left;
    }
  }
  Manifest manifest;
  manifest.model = store.model();
  manifest.groups = {{"hogwild", shard.optimizer()}};
  manifest.rowShards = {entry};
  return {writer->path(), manifest};
}

TEST_CASE("rows of a live checkpoint have no version that its row shard has not reached") {
  MemoryEnv env;
  const auto store = makeStore();
  updateAll(store->rowShard(0));
  const Checkpoint saved = save(env, *store, true, [&] {
    for (int i = 0; i < 3; i++) updateAll(store->rowShard(0));
  });
  const auto restored = makeStore();
  RowShard& shard = restored->rowShard(0);
  std::vector<std::string> notes;
  const PlacedCheckpoint from{&saved};
  PSD_REQUIRE_OK(restoreRows(env, {&from, 1}, {}, shard, notes));
  CHECK(shard.version() == Version{1});
  // A checkpoint that is not live leaves out rows of later versions, which count as new ones.
  RowSnapshot snapshot(shard, false);
  RowPiece piece;
  snapshot.next(piece);
  CHECK(piece.ids.size() == kRows);
}

}  // namespace
}  // namespace psd::rows_restore_test

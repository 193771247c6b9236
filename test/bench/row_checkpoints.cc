// psd-bench-row-checkpoints: the time of a checkpoint of the changed rows compared with one of all rows.
// Prints one JSON object; the two alternate.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "common/types/split_mix.h"
#include "server/checkpoint/checkpointer.h"
#include "test/bench/bench_program.h"
#include "test/support/temp_dir.h"

namespace psd::bench {
namespace {

struct Arguments {
  uint64_t rows = 1'000'000;
  uint32_t dim = 32;
  uint32_t rowShards = 1;
  double touched = 0.01;  // of the rows, between two checkpoints
  uint32_t rounds = 5;
};

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// One update of the rows with these ids.
void update(ParameterStore& store, const std::vector<uint64_t>& ids, uint32_t dim) {
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    RowShard& shard = store.rowShard(i);
    std::vector<uint64_t> own = ids;
    std::erase_if(own, [&](uint64_t id) { return !shard.hashes().contains(rowHash(id)); });
    if (own.empty()) continue;
    const RowRun run{0, static_cast<uint32_t>(own.size())};
    const std::vector<float> gradients(own.size() * dim, 0.5f);
    require(shard.update({{{&run, 1}, own}, gradients, nullptr}, {},
                         shard.scalars(shard.beginExclusiveUpdate())));
    shard.endUpdate();
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Median times of checkpoints of one kind.
struct Taken {
  std::vector<double> seconds, bytes;

  void take(Checkpointer& checkpointer) {
    require(checkpointer.takeNow());
    const auto last = checkpointer.status().lastCheckpoint;
    seconds.push_back(last->durationSeconds);
    bytes.push_back(static_cast<double>(last->writtenBytes));
  }
};

void measure(const Arguments& arguments) {
  Optimizer optimizer;
  optimizer.algorithm = Adagrad{};
  StoreGroups groups{{}, {optimizer}, {0}, arguments.rowShards};
  auto made =
      ParameterStore::create({"bench", {}, {{"table", arguments.dim, {}}}}, 1, {makeCpuBackend()}, groups);
  require(made.status());
  const std::shared_ptr<ParameterStore> store = *std::move(made);
  constexpr uint64_t kPushed = 10'000;
  const auto idOf = [](uint64_t index) { return splitMix(index * 0x2545f4914f6cdd1d); };
  for (uint64_t first = 0; first < arguments.rows; first += kPushed) {
    std::vector<uint64_t> ids;
    for (uint64_t i = first; i < std::min(arguments.rows, first + kPushed); i++) ids.push_back(idOf(i));
    update(*store, ids, arguments.dim);
  }
  const testing::TempDir folder;
  const auto env = makePosixEnv();
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::checkpoint;
  config.path = folder.file("saved");
  config.everySeconds = 0;
  config.keep = 1;
  config.fullEvery = 2;
  CheckpointSource source;
  source.store = store;
  source.groups = [] { return std::vector<CheckpointSource::Group>{{"locked"}}; };
  Checkpointer checkpointer(*env, config, source, 1);
  Taken full, changed;
  uint64_t drawn = 0;
  const auto touch = [&] {
    std::vector<uint64_t> ids;
    for (double i = 0; i < arguments.touched * static_cast<double>(arguments.rows); i++) {
      ids.push_back(idOf((__uint128_t{splitMix(++drawn)} * arguments.rows) >> 64));
    }
    update(*store, ids, arguments.dim);
  };
  for (uint32_t round = 0; round < arguments.rounds; round++) {
    touch();
    full.take(checkpointer);
    touch();
    changed.take(checkpointer);
  }
  const nlohmann::ordered_json out = {{"rows", arguments.rows},
                                      {"dim", arguments.dim},
                                      {"row_shards", arguments.rowShards},
                                      {"touched", arguments.touched},
                                      {"full_s", median(full.seconds)},
                                      {"full_bytes", median(full.bytes)},
                                      {"changed_s", median(changed.seconds)},
                                      {"changed_bytes", median(changed.bytes)},
                                      {"ratio_s", median(changed.seconds) / median(full.seconds)},
                                      {"ratio_bytes", median(changed.bytes) / median(full.bytes)}};
  std::printf("%s\n", out.dump().c_str());
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures checkpoints of embedding rows: of those that changed beside all.",
               "psd-bench-row-checkpoints");
  app.add_option("--rows", arguments.rows, "rows of the table")
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 31));
  app.add_option("--dim", arguments.dim, "values of a row")->check(CLI::Range(1u, RowLayout::kDimMax));
  app.add_option("--row-shards", arguments.rowShards, "parts of the table")->check(CLI::Range(1, 1000));
  app.add_option("--touched", arguments.touched, "share of the rows that change")->check(CLI::Range(0., 1.));
  app.add_option("--rounds", arguments.rounds, "measurements of each")->check(CLI::Range(1, 10'000));
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::warn);
  measure(arguments);
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  return psd::bench::runProgram("psd-bench-row-checkpoints", psd::bench::run, argc, argv);
}

// psd-bench-rows: the cost of looking up rows by id compared with knowing their position. Prints one JSON
// object per measurement, in seconds of the thread's CPU time; compared operations alternate, with different
// ids each time.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <time.h>

#include "common/types/split_mix.h"
#include "server/store/rows/row_table.h"
#include "test/bench/bench_program.h"
#include "test/bench/measure.h"

namespace psd::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  uint64_t rows = 1'000'000;
  uint32_t dim = 32;
  uint64_t batch = 100'000;
  uint64_t pushed = 2048;  // new rows of one push
  uint32_t rounds = 25;
  std::string measure = "all";  // or "lookups", with SGD only, or "inserts"
};

/// CPU seconds of this thread: less disturbed by other processes than wall time.
double workedSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Work>
double timeOf(const Work& work) {
  const double start = workedSeconds();
  work();
  return workedSeconds() - start;
}

double at(std::vector<double> times, double quantile) {
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(quantile * static_cast<double>(times.size() - 1))];
}

/// Id number `index` of those in the table.
uint64_t idOf(uint64_t index) { return splitMix(index * 0x2545f4914f6cdd1d); }

std::unique_ptr<RowTable> makeTable(const Arguments& arguments, const AnyOptimizer& algorithm) {
  Optimizer optimizer;
  optimizer.algorithm = algorithm;
  return std::make_unique<RowTable>(RowTable::Options{}, makeCpuRowStorage(arguments.dim, optimizer),
                                    std::make_shared<Epochs>());
}

void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// Adds all rows, and returns the seconds of each push.
std::vector<double> fill(RowTable& table, const Arguments& arguments) {
  std::vector<double> times;
  std::vector<uint64_t> ids;
  for (uint64_t first = 0; first < arguments.rows; first += arguments.pushed) {
    ids.clear();
    for (uint64_t i = first; i < std::min(arguments.rows, first + arguments.pushed); ++i)
      ids.push_back(idOf(i));
    times.push_back(timeOf([&] { require(table.insertMissing(ids, Version{1}).status()); }));
  }
  return times;
}

/// A table of lines that doubles, like most hash tables: only for the longest pause.
double doublingPause(const Arguments& arguments) {
  struct alignas(64) Line {
    uint64_t ids[5];
    uint32_t rows[5];
    uint32_t used;
  };
  const auto map = [](uint64_t lines) {
    return MappedBlock::map(lines * sizeof(Line), MappedBlock::Pages::huge).value();
  };
  const auto put = [](Line* lines, uint64_t count, uint64_t id, uint32_t row) {
    uint64_t at = rowHash(id) % count;
    while (lines[at].used == 5) at = (at + 1) % count;
    lines[at].ids[lines[at].used] = id;
    lines[at].rows[lines[at].used++] = row;
  };
  uint64_t count = 1024;
  MappedBlock block = map(count);
  double longest = 0;
  for (uint64_t i = 0; i < arguments.rows; ++i) {
    if (i >= count * 4) {
      const double start = workedSeconds();
      MappedBlock doubled = map(2 * count);
      const auto* const lines = reinterpret_cast<const Line*>(block.data());
      for (uint64_t line = 0; line < count; ++line) {
        for (uint32_t e = 0; e < lines[line].used; ++e) {
          put(reinterpret_cast<Line*>(doubled.data()), 2 * count, lines[line].ids[e], lines[line].rows[e]);
        }
      }
      block = std::move(doubled);
      count *= 2;
      longest = std::max(longest, workedSeconds() - start);
    }
    put(reinterpret_cast<Line*>(block.data()), count, idOf(i), static_cast<uint32_t>(i));
  }
  return longest;
}

/// Ids of one batch, different each time.
class Batches {
 public:
  explicit Batches(const Arguments& arguments) : rows_(arguments.rows), ids_(arguments.batch) {}
  std::span<const uint64_t> next() {
    for (uint64_t& id : ids_) id = idOf((__uint128_t{splitMix(state_++)} * rows_) >> 64);
    return ids_;
  }

 private:
  const uint64_t rows_;
  uint64_t state_ = 1;
  std::vector<uint64_t> ids_;
};

/// Rows per second.
Json rates(const Arguments& arguments, const std::vector<double>& times) {
  const auto rows = static_cast<double>(arguments.batch);
  return {{"median", rows / at(times, 0.5)}, {"best_tenth", rows / at(times, 0.1)}};
}

void lookups(const Arguments& arguments, RowTable& table, RowStorage& storage) {
  Batches batches(arguments);
  const Floats out(arguments.batch * arguments.dim * sizeof(float));
  const std::span<float> values(out.data(), out.count());
  std::vector<uint32_t> rows(arguments.batch);
  std::vector<double> known, gathered, found, seeded, applied, ratios;
  const auto gatherKnown = [&] {
    constexpr uint64_t kBlock = RowIndex::kBlock;
    const std::span<const uint32_t> all(rows);
    const auto block = [&](uint64_t first) {
      return first < all.size() ? all.subspan(first, std::min(kBlock, all.size() - first))
                                : RowStorage::Rows();
    };
    for (uint64_t first = 0; first < all.size(); first += kBlock) {
      storage.gather(block(first), values.subspan(first * arguments.dim), block(first + kBlock));
    }
  };
  const RowInitial initial;
  for (uint32_t round = 0; round < arguments.rounds; ++round) {
    table.find(batches.next(), rows);
    batches.next();  // so that gathers do not use what find() brought into the cache
    table.find(batches.next(), rows);
    std::vector<uint32_t> keep = rows;
    std::span<const uint64_t> ids = batches.next();
    found.push_back(timeOf([&] { table.find(ids, rows); }));
    rows = keep;
    known.push_back(timeOf(gatherKnown));
    ids = batches.next();
    gathered.push_back(timeOf([&] { table.gather(ids, values); }));
    ratios.push_back(known.back() / gathered.back());
    ids = batches.next();
    seeded.push_back(timeOf([&] {
      for (uint64_t i = 0; i < ids.size(); ++i)
        initial.fill(ids[i], values.subspan(i * arguments.dim, arguments.dim));
    }));
    ids = batches.next();
    applied.push_back(timeOf([&] { table.apply(ids, values, {}, {1, 1e-3}, true, Version{2}); }));
  }
  const Json line = {{"measure", "lookup_gather"},
                     {"rows", arguments.rows},
                     {"load", table.size().load},
                     {"find", rates(arguments, found)},
                     {"gather_known_rows", rates(arguments, known)},
                     {"gather", rates(arguments, gathered)},
                     {"ratio_median", at(ratios, 0.5)},
                     {"ratio_best_tenth", at(ratios, 0.9)},
                     {"initial_values", rates(arguments, seeded)},
                     {"apply", rates(arguments, applied)}};
  std::printf("%s\n", line.dump().c_str());
}

void inserts(const Arguments& arguments) {
  const auto table = makeTable(arguments, Sgd{});
  require(table->reserve(arguments.rows));
  const std::vector<double> times = fill(*table, arguments);
  const double doubling = doublingPause(arguments);
  double all = 0;
  for (const double time : times) all += time;
  const Json line = {{"measure", "insert"},
                     {"rows", arguments.rows},
                     {"rows_per_s", static_cast<double>(arguments.rows) / all},
                     {"pushed_rows", arguments.pushed},
                     {"median_s", at(times, 0.5)},
                     {"p999_s", at(times, 0.999)},
                     {"longest_s", at(times, 1)},
                     {"doubling_longest_s", doubling},
                     {"ratio_longest", at(times, 1) / doubling},
                     {"splits", table->size().splits}};
  std::printf("%s\n", line.dump().c_str());
}

void sizes(const RowTable& table) {
  const RowTableSize size = table.size();
  uint64_t floats = 0;
  for (uint32_t plane = 0; plane < table.layout().planeCount(); ++plane)
    floats += table.layout().width(plane);
  const double each = static_cast<double>(size.bytes + size.indexBytes) / static_cast<double>(size.rows);
  const Json line = {{"measure", "bytes_per_row"},
                     {"optimizer", table.optimizer().describe()},
                     {"rows", size.rows},
                     {"bytes", each},
                     {"beyond_values", each - static_cast<double>(floats * sizeof(float))}};
  std::printf("%s\n", line.dump().c_str());
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures embedding rows in memory: by id beside by row number.", "psd-bench-rows");
  app.add_option("--rows", arguments.rows, "rows of the table")
      ->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 31));
  app.add_option("--dim", arguments.dim, "values of a row")->check(CLI::Range(1u, RowLayout::kDimMax));
  app.add_option("--batch", arguments.batch, "ids of one call")->check(CLI::Range(1000, 10'000'000));
  app.add_option("--rounds", arguments.rounds, "measurements of each")->check(CLI::Range(1, 10'000));
  app.add_option("--measure", arguments.measure, "all | lookups (under plain SGD alone) | inserts")
      ->check(CLI::IsMember({"all", "lookups", "inserts"}));
  CLI11_PARSE(app, argc, argv);
  if (arguments.measure == "inserts") {
    inserts(arguments);
    return 0;
  }
  for (const AnyOptimizer& algorithm :
       {AnyOptimizer(Sgd{}), AnyOptimizer(RowwiseAdagrad{}), AnyOptimizer(Adagrad{}), AnyOptimizer(Adam{})}) {
    Optimizer optimizer;
    optimizer.algorithm = algorithm;
    auto storage = makeCpuRowStorage(arguments.dim, optimizer);
    RowStorage& rows = *storage;
    RowTable table({}, std::move(storage), std::make_shared<Epochs>());
    fill(table, arguments);
    sizes(table);
    lookups(arguments, table, rows);
    if (arguments.measure == "lookups") return 0;
  }
  inserts(arguments);
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  return psd::bench::runProgram("psd-bench-rows", psd::bench::run, argc, argv);
}

#include "trainer/bench/rows_bench.h"

#include <algorithm>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/types/split_mix.h"
#include "common/types/stopwatch.h"
#include "trainer/bench/processes.h"
#include "trainer/bench/zipf.h"

namespace psd {
namespace {

constexpr uint64_t kFillIds = 100'000;   // ids per push that fills the tables
constexpr uint64_t kCreatorIds = 2'048;  // ids per push of a creator

using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;

/// Measurements of one kind of call. A value type.
struct Times {
  std::vector<double> seconds, rows, plans;

  void add(double call, uint64_t rowCount, double plan) {
    seconds.push_back(call);
    rows.push_back(static_cast<double>(rowCount));
    plans.push_back(plan);
  }
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Times, seconds, rows, plans)

/// Measurements of one trainer. A value type.
struct Measured {
  Times pulls, pushes;
  std::string policy, device, rowTransport;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Measured, pulls, pushes, policy, device, rowTransport)

std::string pack(const Measured& measured) {
  std::string packed;
  nlohmann::json::to_msgpack(nlohmann::json(measured), packed);
  return packed;
}

double at(const std::vector<double>& sorted, double share) {
  const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted.empty() ? 0 : sorted[std::min(sorted.size() - 1, index)];
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return at(values, 0.5);
}

/// The id of row number `row` in every table: spread over all 64 bits, like hashed features.
uint64_t idOf(uint64_t row) { return splitMix(row * kSplitMixStep); }

/// One trainer of the bench. Owned by one thread.
class RowLoad {
 public:
  RowLoad(const RowsBenchOptions& options, uint32_t rank)
      : options_(options),
        rank_(rank),
        engine_(rank + 1),
        rowsOfTable_(std::max<uint64_t>(1, options.rows / options.tables)),
        zipf_(rowsOfTable_, options.skew > 0 ? options.skew : 1),
        ids_(options.tables) {}

  Result<Measured> run(const Connect& connect, const Barrier& barrier) {
    PSD_RETURN_IF_ERROR(join(connect));
    if (rank_ == 0 && !options_.create) PSD_RETURN_IF_ERROR(fill());
    barrier();
    PSD_RETURN_IF_ERROR(options_.create ? createAll() : rank_ == 0 ? measure() : createMeanwhile());
    PSD_RETURN_IF_ERROR(client_->leave());
    barrier();
    return std::move(measured_);
  }

 private:
  Status join(const Connect& connect) {
    PSD_ASSIGN_OR_RETURN(client_, connect(options_.client));
    ModelSpec model{"bench", {}, {}};
    for (uint32_t table = 0; table < options_.tables; table++) {
      model.tables.push_back({fmt::format("table{}", table), options_.dim, {}});
    }
    PSD_ASSIGN_OR_RETURN(const JoinInfo info, client_->join({Rank{rank_}, 1 + options_.creators}, model,
                                                            [] { return std::span<const float>(); }));
    measured_.policy = info.policy;
    measured_.device = info.device;
    measured_.rowTransport = info.rowTransport;
    batch_.emplace(client_->makeRowBatch());
    return {};
  }

  uint64_t idsOfTable(uint64_t all) const { return std::max<uint64_t>(1, all / options_.tables); }

  /// Selects `count` rows from number `first` on in every table.
  void choose(uint64_t first, uint64_t count) {
    for (auto& ids : ids_) {
      ids.resize(count);
      for (uint64_t i = 0; i < count; i++) ids[i] = idOf(first + i);
    }
  }
  void draw() {
    std::uniform_int_distribution<uint64_t> uniform(0, rowsOfTable_ - 1);
    for (auto& ids : ids_) {
      ids.resize(idsOfTable(options_.ids));
      for (uint64_t& id : ids) id = idOf(options_.skew > 0 ? zipf_(engine_) - 1 : uniform(engine_));
    }
  }
  /// Makes the batch of the selected rows; returns the seconds it took.
  double plan() {
    std::vector<RowBatch::Feature> features;
    for (uint32_t table = 0; table < options_.tables; table++) features.push_back({table, ids_[table]});
    const Stopwatch stopwatch;
    batch_->make(features);
    return stopwatch.seconds();
  }

  Status pull() {
    draw();
    const double planned = plan();
    const Stopwatch stopwatch;
    PSD_RETURN_IF_ERROR(client_->pull({}, &*batch_).wait());
    measured_.pulls.add(stopwatch.seconds(), batch_->rowCount(), planned);
    return {};
  }
  /// Pushes zeros for the selected rows.
  Status push() {
    const double planned = plan();
    const Stopwatch stopwatch;
    PSD_ASSIGN_OR_RETURN(const PushInfo info, client_->push(Step{++step_}, {}, 1, {}, &*batch_).wait());
    if (info.outcome != PushOutcome::applied) {
      return {ErrorCode::notReady,
              "bench rows: a push was too stale, or late; use a daemon with the policy "
              "hogwild or locked"};
    }
    measured_.pushes.add(stopwatch.seconds(), batch_->rowCount(), planned);
    return {};
  }

  Status fill() {
    const uint64_t some = idsOfTable(kFillIds);
    for (uint64_t first = 0; first < rowsOfTable_; first += some) {
      choose(first, std::min(some, rowsOfTable_ - first));
      PSD_RETURN_IF_ERROR(push());
    }
    return {};
  }
  Status measure() {
    for (int warm = 0; warm < 2; warm++) {
      PSD_RETURN_IF_ERROR(pull());
      draw();
      PSD_RETURN_IF_ERROR(push());
    }
    measured_.pulls = measured_.pushes = {};
    const Stopwatch stopwatch;
    while (stopwatch.seconds() < options_.seconds || measured_.pulls.seconds.empty()) {
      PSD_RETURN_IF_ERROR(pull());
      draw();
      PSD_RETURN_IF_ERROR(push());
    }
    return {};
  }
  Status createAll() {
    const uint64_t some = idsOfTable(options_.ids);
    for (uint64_t first = 0; first < rowsOfTable_; first += some) {
      choose(first, std::min(some, rowsOfTable_ - first));
      PSD_RETURN_IF_ERROR(push());
    }
    return {};
  }
  /// Creates rows while the first trainer measures. No two creators create the same rows.
  Status createMeanwhile() {
    uint64_t next = rowsOfTable_ + (uint64_t{rank_} << 40);
    const Stopwatch stopwatch;
    while (stopwatch.seconds() < options_.seconds) {
      choose(next, idsOfTable(kCreatorIds));
      next += idsOfTable(kCreatorIds);
      PSD_RETURN_IF_ERROR(push());
    }
    return {};
  }

  const RowsBenchOptions& options_;
  const uint32_t rank_;
  std::mt19937_64 engine_;
  const uint64_t rowsOfTable_;
  const Zipf zipf_;
  std::vector<std::vector<uint64_t>> ids_;  // by table
  std::unique_ptr<Client> client_;
  std::optional<RowBatch> batch_;
  uint64_t step_ = 0;
  Measured measured_;
};

RowsBenchReport::Calls callsOf(const Times& times) {
  std::vector<double> sorted = times.seconds, rates;
  std::ranges::sort(sorted);
  for (size_t i = 0; i < times.seconds.size(); i++) rates.push_back(times.rows[i] / times.seconds[i]);
  return {sorted.size(),     at(sorted, 0.5), at(sorted, 0.99),
          at(sorted, 0.999), at(sorted, 1),   median(std::move(rates))};
}

nlohmann::ordered_json toJson(const RowsBenchReport::Calls& calls) {
  return {{"count", calls.count}, {"median_s", calls.median},   {"p99_s", calls.p99},
          {"p999_s", calls.p999}, {"longest_s", calls.longest}, {"rows_per_s", calls.rowsPerSecond}};
}

}  // namespace

Result<RowsBenchReport> runRowsBench(const RowsBenchOptions& options, const Connect& connect) {
  const auto work = [&](uint32_t number, const Barrier& barrier) -> Result<std::string> {
    PSD_ASSIGN_OR_RETURN(const Measured measured, RowLoad(options, number).run(connect, barrier));
    return pack(measured);
  };
  std::string packed;
  if (options.creators == 0) {
    PSD_ASSIGN_OR_RETURN(packed, work(0, [] {}));
  } else {
    PSD_ASSIGN_OR_RETURN(const std::vector<std::string> all, runInProcesses(1 + options.creators, work));
    packed = all.front();
  }
  const auto measured = nlohmann::json::from_msgpack(packed).get<Measured>();
  RowsBenchReport report;
  report.options = options;
  report.pulls = callsOf(measured.pulls);
  report.pushes = callsOf(measured.pushes);
  report.plan = median(measured.pushes.plans);
  for (const double rows : measured.pushes.rows) report.rows += rows;
  report.rows /= static_cast<double>(measured.pushes.rows.size());
  report.policy = measured.policy;
  report.device = measured.device;
  report.rowTransport = measured.rowTransport;
  return report;
}

std::string formatText(const RowsBenchReport& report) {
  const RowsBenchOptions& options = report.options;
  std::string out = fmt::format(
      "rows  {} table(s) of dim {}, {} rows, {} ids a call ({:.0f} rows), policy {}, {}, rows by {}\n",
      options.tables, options.dim, options.rows, options.ids, report.rows, report.policy, report.device,
      report.rowTransport);
  const auto add = [&out](const char* what, const RowsBenchReport::Calls& calls) {
    if (calls.count == 0) return;
    out += fmt::format("  {}   {:.3f} ms median, {:.3f} ms p99, {:.3f} ms longest   {:.2f} M rows/s\n", what,
                       calls.median * 1e3, calls.p99 * 1e3, calls.longest * 1e3, calls.rowsPerSecond / 1e6);
  };
  add("pull", report.pulls);
  add(options.create ? "create" : "push", report.pushes);
  return out + fmt::format("  batch  {:.3f} ms median to make, beside that", report.plan * 1e3);
}

std::string formatJson(const RowsBenchReport& report) {
  const RowsBenchOptions& options = report.options;
  nlohmann::ordered_json out = {{"operation", "rows"},        {"policy", report.policy},
                                {"device", report.device},    {"row_transport", report.rowTransport},
                                {"dim", options.dim},         {"tables", options.tables},
                                {"table_rows", options.rows}, {"ids", options.ids},
                                {"skew", options.skew},       {"creators", options.creators},
                                {"create", options.create},   {"rows", report.rows},
                                {"plan_s", report.plan}};
  if (!options.create) out["pull"] = toJson(report.pulls);
  out["push"] = toJson(report.pushes);
  return out.dump();
}

}  // namespace psd

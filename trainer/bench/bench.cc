#include "trainer/bench/bench.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/os/huge_pages.h"
#include "common/text/quantity.h"
#include "common/types/model_layout.h"
#include "common/types/stopwatch.h"
#include "trainer/bench/processes.h"
#include "trainer/client/transport/device_copier.h"

namespace psd {
namespace {

constexpr uint64_t kCallsPerRound = 1000;  // latency: more than the maximum of outstanding calls
constexpr size_t kAlignment = 64;
constexpr float kGradientScale = 1e-3f;

/// Aligned zeros; every page is touched in advance, so that no page fault falls into the measurement.
class Values {
 public:
  explicit Values(uint64_t count)
      : count_(count), data_(static_cast<float*>(std::aligned_alloc(kAlignment, count * sizeof(float)))) {
    if (data_ == nullptr) throw std::bad_alloc();
    preferHugePages(data_, count * sizeof(float));
    std::fill_n(data_, count, 0.f);
  }
  ~Values() { std::free(data_); }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;
  std::span<float> span() const { return {data_, count_}; }

 private:
  uint64_t count_;
  float* data_;
};

using Connect = std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>;

/// Measurements of one trainer. A value type.
struct LoadReport {
  std::vector<double> rounds;  // seconds of each
  double elapsed = 0;
  std::string policy, device, pullTransport, pushTransport, codec = "none", pullCodec = "none";
  uint64_t wireBytes = 0;  // of one round
  uint32_t connections = 1;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoadReport, rounds, elapsed, policy, device, pullTransport, pushTransport,
                                   codec, pullCodec, wireBytes, connections)

/// Serializes a report for the parent process.
std::string pack(const LoadReport& report) {
  std::string packed;
  nlohmann::json::to_msgpack(nlohmann::json(report), packed);
  return packed;
}

LoadReport unpack(const std::string& packed) {
  return nlohmann::json::from_msgpack(packed).get<LoadReport>();
}

/// One trainer of the bench: its client and its memory. Owned by one thread.
class Load {
 public:
  Load(const BenchOptions& options, Rank rank, const ModelSpec& model)
      : options_(options),
        rank_(rank),
        model_(model),
        values_(isLatency() ? 0 : ModelLayout(model).totalElements()) {}

  Result<LoadReport> run(const Connect& connect, const Barrier& barrier) {
    PSD_RETURN_IF_ERROR(join(connect));
    barrier();
    PSD_RETURN_IF_ERROR(round());  // warms buffers and pages on both sides
    report_.rounds.clear();
    const Stopwatch stopwatch;
    while (stopwatch.seconds() < options_.seconds) PSD_RETURN_IF_ERROR(round());
    report_.elapsed = stopwatch.seconds();
    // Leave before waiting for the others: under some policies they may be waiting for this trainer's pushes.
    PSD_RETURN_IF_ERROR(client_->leave());
    barrier();
    return std::move(report_);
  }

 private:
  bool isLatency() const { return options_.operation == BenchOperation::latency; }

  Status join(const Connect& connect) {
    PSD_ASSIGN_OR_RETURN(client_, connect(options_.client));
    if (isLatency()) return {};  // needs no model, so it works with any daemon
    PSD_ASSIGN_OR_RETURN(const JoinInfo info, client_->join({rank_, options_.trainers}, model_, [&] {
      return std::span<const float>(values_.span());
    }));
    report_.policy = info.policy;
    report_.device = info.device;
    report_.pullTransport = info.pullTransport;
    report_.pushTransport = info.pushTransport;
    report_.codec = info.codec;
    report_.pullCodec = info.pullCodec;
    report_.connections = info.connections;
    PSD_ASSIGN_OR_RETURN(const PullInfo first, client_->pull(values_.span()).wait());
    basis_ = first.versions;
    gradient_ = into_ = values_.span();
    if (options_.client.cudaDevice >= 0) return moveToDevice();
    if (options_.operation == BenchOperation::pull) return {};
    // Zeros would not travel: of a slice of mostly zeros the client pushes the others.
    pushed_.emplace(gradient_.size());
    gradient_ = pushed_->span();
    std::ranges::fill(pushed_->span(), kGradientScale);
    if (info.codec == "none") return {};
    // Codecs that select the largest values need different ones.
    std::mt19937 engine(rank_.value);
    std::normal_distribution<float> normal(0, kGradientScale);
    for (float& value : pushed_->span()) value = normal(engine);
    return {};
  }

  Status moveToDevice() {
    PSD_ASSIGN_OR_RETURN(copier_, DeviceCopier::make(options_.client.cudaDevice));
    if (!client_->useDeviceMemory()) {
      return {ErrorCode::invalidArgument,
              "--device cuda:" + std::to_string(options_.client.cudaDevice) +
                  ": the daemon shares no memory of its devices with this trainer; it does so over a Unix "
                  "socket, with all shards on CUDA devices and no codec"};
    }
    PSD_ASSIGN_OR_RETURN(array_, copier_->allocate(values_.span()));
    gradient_ = into_ = array_->span();
    return {};
  }

  Status round() {
    if (isLatency()) {
      PSD_ASSIGN_OR_RETURN(PingInfo info, client_->ping(kCallsPerRound, options_.outstanding));
      report_.rounds.insert(report_.rounds.end(), info.seconds.begin(), info.seconds.end());
      return {};
    }
    const Stopwatch stopwatch;
    report_.wireBytes = 0;
    if (options_.operation != BenchOperation::pull) {
      PSD_ASSIGN_OR_RETURN(const PushInfo info, client_->push(Step{++step_}, gradient_, 1, basis_).wait());
      report_.wireBytes += info.bytes;
      if (info.outcome != PushOutcome::applied) {  // too late for its round, or too stale
        PSD_ASSIGN_OR_RETURN(const PullInfo newest, client_->pull(into_).wait());
        basis_ = newest.versions;
        return {};
      }
      // The answer may hold versions of other shards from before this update, which raised each by one.
      for (size_t i = 0; i < basis_.size(); i++) {
        basis_[i] = std::max(Version{basis_[i].value + 1}, info.versions[i]);
      }
    }
    if (options_.operation != BenchOperation::push) {
      PSD_ASSIGN_OR_RETURN(const PullInfo info, client_->pull(into_).wait());
      report_.wireBytes += info.bytes;
      basis_ = info.versions;
    }
    report_.rounds.push_back(stopwatch.seconds());
    return {};
  }

  const BenchOptions& options_;
  const Rank rank_;
  const ModelSpec& model_;
  Values values_;
  std::optional<Values> pushed_;  // the gradient, if one is pushed from host memory
  std::unique_ptr<DeviceCopier> copier_;
  std::unique_ptr<DeviceCopier::Array> array_;  // in place of values_, on a CUDA device
  std::span<float> into_;
  std::span<const float> gradient_;
  std::unique_ptr<Client> client_;
  std::vector<Version> basis_;  // of the next push
  uint64_t step_ = 0;
  LoadReport report_;
};

double percentile(std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

BenchReport summarise(const BenchOptions& options, uint64_t bytes, const std::vector<LoadReport>& loads) {
  BenchReport report;
  report.operation = options.operation;
  report.bytes = options.operation == BenchOperation::latency ? 0 : bytes;
  report.trainers = options.trainers;
  report.connections = loads.front().connections;
  report.policy = loads.front().policy;
  report.device = loads.front().device;
  report.pullTransport = loads.front().pullTransport;
  report.pushTransport = loads.front().pushTransport;
  report.codec = loads.front().codec;
  report.pullCodec = loads.front().pullCodec;
  report.wireBytes = loads.front().wireBytes;
  std::vector<double> all;
  size_t fewest = SIZE_MAX, most = 0;
  for (const LoadReport& load : loads) {
    all.insert(all.end(), load.rounds.begin(), load.rounds.end());
    fewest = std::min(fewest, load.rounds.size());
    most = std::max(most, load.rounds.size());
    report.elapsed = std::max(report.elapsed, load.elapsed);
  }
  std::sort(all.begin(), all.end());
  report.rounds = all.size();
  report.median = percentile(all, 0.5);
  report.p99 = percentile(all, 0.99);
  report.fairness = static_cast<double>(fewest) / static_cast<double>(most);
  uint64_t directions = options.operation == BenchOperation::pushpull ? 2 : 1;
  report.bytesPerSecond = static_cast<double>(report.bytes * directions) * report.roundsPerSecond();
  return report;
}

std::string_view nameOf(BenchOperation operation) {
  for (const auto& entry : benchOperations()) {
    if (entry.operation == operation) return entry.name;
  }
  return "unknown";
}

}  // namespace

Result<BenchReport> runBench(const BenchOptions& options, const Connect& connect) {
  constexpr uint64_t kGrain = kLayoutGrainElements;
  uint64_t elements =
      (std::max<uint64_t>(options.bytes, 1) + kGrain * sizeof(float) - 1) / (kGrain * sizeof(float)) * kGrain;
  ModelSpec model{"bench", {{"weights", DType::f32, {elements}}}};
  const auto work = [&](uint32_t number, const Barrier& barrier) -> Result<std::string> {
    try {
      PSD_ASSIGN_OR_RETURN(const LoadReport report, Load(options, Rank{number}, model).run(connect, barrier));
      return pack(report);
    } catch (const std::bad_alloc&) {
      return Error{ErrorCode::overloaded,
                   "--size: no memory for " + std::to_string(elements * sizeof(float)) +
                       " bytes of parameters in each of " + std::to_string(options.trainers) + " trainer(s)"};
    }
  };
  std::vector<LoadReport> loads;
  if (options.trainers == 1) {
    PSD_ASSIGN_OR_RETURN(const std::string packed, work(0, [] {}));
    loads.push_back(unpack(packed));
  } else {
    PSD_ASSIGN_OR_RETURN(const std::vector<std::string> packed, runInProcesses(options.trainers, work));
    for (const std::string& each : packed) loads.push_back(unpack(each));
  }
  const auto any =
      std::any_of(loads.begin(), loads.end(), [](const LoadReport& load) { return !load.rounds.empty(); });
  if (!any) {
    return Error{ErrorCode::notReady,
                 fmt::format("no gradient was applied within {}: each came too late, or was too stale for "
                             "the daemon's policy",
                             durationText(options.seconds))};
  }
  return summarise(options, elements * sizeof(float), loads);
}

std::string formatText(const BenchReport& report) {
  std::string out = fmt::format("{}  {} trainer(s)", nameOf(report.operation), report.trainers);
  if (!report.policy.empty()) {
    out += fmt::format(", policy {}, {}, pulls by {}, pushes by {}", report.policy, report.device,
                       report.pullTransport, report.pushTransport);
  }
  if (report.connections > 1) out += fmt::format(", {} connections each", report.connections);
  out += "\n";
  if (report.operation == BenchOperation::latency) {
    out += fmt::format("  round trip   {:.1f} us median, {:.1f} us p99\n  throughput   {:.0f} calls/s",
                       report.median * 1e6, report.p99 * 1e6, report.roundsPerSecond());
  } else {
    out += fmt::format("  one of {:.1f} MiB   {:.3f} ms median, {:.3f} ms p99\n  throughput   {:.2f} GB/s",
                       static_cast<double>(report.bytes) / (1 << 20), report.median * 1e3, report.p99 * 1e3,
                       report.bytesPerSecond / 1e9);
  }
  if (report.codec != "none" || report.pullCodec != "none") {
    const uint64_t directions = report.operation == BenchOperation::pushpull ? 2 : 1;
    out +=
        fmt::format("\n  codec {}, of pulls {}   {:.2f} MiB on the wire, {:.1f} times fewer", report.codec,
                    report.pullCodec, static_cast<double>(report.wireBytes) / (1 << 20),
                    static_cast<double>(report.bytes * directions) / static_cast<double>(report.wireBytes));
  }
  if (report.trainers > 1) {
    out += fmt::format("\n  fairness   {:.2f} (slowest by fastest trainer)", report.fairness);
  }
  return out;
}

std::string formatJson(const BenchReport& report) {
  return nlohmann::ordered_json{{"operation", nameOf(report.operation)},
                                {"trainers", report.trainers},
                                {"connections", report.connections},
                                {"policy", report.policy},
                                {"device", report.device},
                                {"pull_transport", report.pullTransport},
                                {"push_transport", report.pushTransport},
                                {"bytes", report.bytes},
                                {"rounds", report.rounds},
                                {"elapsed_s", report.elapsed},
                                {"median_s", report.median},
                                {"p99_s", report.p99},
                                {"rounds_per_s", report.roundsPerSecond()},
                                {"bytes_per_s", report.bytesPerSecond},
                                {"fairness", report.fairness},
                                {"codec", report.codec},
                                {"pull_codec", report.pullCodec},
                                {"wire_bytes", report.wireBytes}}
      .dump();
}

}  // namespace psd

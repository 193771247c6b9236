// psd-bench-cuda: the CUDA store's kernels, as bytes moved per second, compared with a device-to-device copy
// in the same run; and gathers and steps of embedding rows, compared with those of rows in host memory.
// Prints a table, or one JSON object. Exit status 4: this machine has no CUDA device; 1 if
// PSD_REQUIRE_CUDA=1.

#include <cstdio>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "server/store/backend.h"
#include "test/bench/cuda_kernels.h"
#include "test/bench/cuda_rows.h"
#include "test/cuda/device_required.h"

namespace psd::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kExitSkipped = 4;  // ctest shows it as skipped
constexpr uint64_t kMillion = 1'000'000;

struct Arguments {
  int device = 0;
  std::vector<uint64_t> elements = {16 * kMillion, 64 * kMillion, 256 * kMillion};
  RowWork rows;
  uint32_t rounds = 7;
  bool json = false;
};

struct Measured {
  std::string device;
  std::vector<KernelTiming> kernels;
  std::vector<HogwildTiming> hogwild;
  std::vector<RowTiming> rows;
  std::vector<std::string> unmeasured;  // with the reason
};

Result<Measured> measureAll(const Arguments& arguments) {
  PSD_ASSIGN_OR_RETURN(KernelBench bench, KernelBench::onDevice(arguments.device));
  Measured out;
  out.device = bench.deviceName();
  for (const uint64_t elements : arguments.elements) {
    auto timings = bench.optimizers(elements, arguments.rounds);
    if (timings.ok()) {
      out.kernels.insert(out.kernels.end(), timings->begin(), timings->end());
    } else if (timings.error().code == ErrorCode::overloaded) {
      out.unmeasured.push_back(std::to_string(elements) + " parameters: " + timings.message());
    } else {
      return timings.error();
    }
  }
  PSD_ASSIGN_OR_RETURN(out.hogwild, bench.hogwild(arguments.elements.front(), arguments.rounds));
  RowWork rows = arguments.rows;
  rows.rounds = arguments.rounds;
  auto timings = timeRows(arguments.device, rows);
  if (timings.ok()) {
    out.rows = *std::move(timings);
  } else if (timings.error().code == ErrorCode::overloaded) {
    out.unmeasured.push_back(std::to_string(rows.rows) + " rows: " + timings.message());
  } else {
    return timings.error();
  }
  return out;
}

void printJson(const Measured& measured) {
  Json kernels = Json::array(), hogwild = Json::array(), rows = Json::array();
  for (const KernelTiming& each : measured.kernels) {
    kernels.push_back({{"optimizer", each.optimizer},
                       {"elements", each.elements},
                       {"median_s", each.seconds},
                       {"bytes_per_s", each.bytesPerSecond()},
                       {"copy_bytes_per_s", each.copyBytesPerSecond()},
                       {"share", each.share()}});
  }
  for (const HogwildTiming& each : measured.hogwild) {
    hogwild.push_back({{"streams", each.streams},
                       {"elements", each.elements},
                       {"median_s", each.seconds},
                       {"bytes_per_s", each.bytesPerSecond()}});
  }
  for (const RowTiming& each : measured.rows) {
    rows.push_back({{"operation", each.operation},
                    {"dim", each.dim},
                    {"batch", each.batch},
                    {"median_s", each.seconds},
                    {"rows_per_s", each.rowsPerSecond()},
                    {"host_rows_per_s", each.hostRowsPerSecond()}});
  }
  const Json out = {{"device", measured.device},
                    {"kernels", kernels},
                    {"hogwild", hogwild},
                    {"rows", rows},
                    {"unmeasured", measured.unmeasured}};
  std::printf("%s\n", out.dump().c_str());
}

void printTable(const Measured& measured) {
  std::printf("%s\n%-10s %12s %10s %12s %6s\n", measured.device.c_str(), "optimizer", "parameters", "GB/s",
              "copy, GB/s", "share");
  for (const KernelTiming& each : measured.kernels) {
    std::printf("%-10s %12llu %10.1f %12.1f %6.2f\n", each.optimizer.c_str(),
                static_cast<unsigned long long>(each.elements), each.bytesPerSecond() / 1e9,
                each.copyBytesPerSecond() / 1e9, each.share());
  }
  for (const HogwildTiming& each : measured.hogwild) {
    std::printf("hogwild sgd of %llu parameters on %u stream(s): %.1f GB/s\n",
                static_cast<unsigned long long>(each.elements), each.streams, each.bytesPerSecond() / 1e9);
  }
  for (const RowTiming& each : measured.rows) {
    std::printf("rows of %u, %llu a call, %s: %.1f million/s, in host memory %.1f\n", each.dim,
                static_cast<unsigned long long>(each.batch), each.operation.c_str(),
                each.rowsPerSecond() / 1e6, each.hostRowsPerSecond() / 1e6);
  }
  for (const std::string& each : measured.unmeasured) std::printf("not measured: %s\n", each.c_str());
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Measures the kernels of the CUDA store.", "psd-bench-cuda");
  app.add_option("--device", arguments.device, "number of the CUDA device")->check(CLI::Range(0, 1023));
  app.add_option("--elements", arguments.elements, "parameters; repeatable")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  app.add_option("--rows", arguments.rows.rows, "embedding rows in a table")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 31));
  app.add_option("--batch", arguments.rows.batch, "embedding rows of a call")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 24));
  app.add_option("--rounds", arguments.rounds, "of every measurement, after one to warm up")
      ->check(CLI::Range(1, 10'000));
  app.add_flag("--json", arguments.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  const auto devices = cudaDeviceCount();
  if ((!devices.ok() || *devices == 0) && !testing::deviceIsRequired()) {
    std::printf("skipped: %s\n", makeCudaBackend(arguments.device).error().message.c_str());
    return kExitSkipped;
  }
  const auto measured = measureAll(arguments);
  if (!measured.ok()) {
    std::fprintf(stderr, "psd-bench-cuda: %s\n", measured.message().c_str());
    return 1;
  }
  arguments.json ? printJson(*measured) : printTable(*measured);
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) { return psd::bench::run(argc, argv); }

// psd-bench-patches: patches between two versions of one bf16 tensor, on one thread, beside the memory's read
// rate. Rates are in bytes of the tensor. Prints one JSON object.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/patch/changed_bits.h"
#include "common/patch/instruction_sets.h"
#include "common/patch/patch_block.h"
#include "common/patch/tensor_patch.h"
#include "test/bench/bench_program.h"
#include "test/bench/measure.h"

namespace psd::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kElementBytes = 2;

std::span<std::byte> bytesOf(const Floats& floats) {
  return std::as_writable_bytes(std::span(floats.bytes()));
}

/// Changes each bf16 with probability `density`.
void scatter(std::span<std::byte> tensor, double density, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::geometric_distribution<uint64_t> gap(density);
  for (uint64_t at = gap(random) * kElementBytes; at < tensor.size();
       at += (1 + gap(random)) * kElementBytes) {
    tensor[at] ^= static_cast<std::byte>(1 + random() % 255);
  }
}

double entropyBits(double p) { return -p * std::log2(p) - (1 - p) * std::log2(1 - p); }

/// The sum of the words of some buffers of the same size, which are read side by side, as a plain loop.
template <class... Buffer>
uint64_t read(Buffer... buffer) {
  const uint64_t count = std::min({buffer.size()...}) / sizeof(uint64_t);
  return withBestInstructions([count, ... from = buffer.data()]() PSD_BEST_INSTRUCTIONS {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const auto word = [i](const std::byte* bytes) PSD_BEST_INSTRUCTIONS {
        uint64_t word;
        std::memcpy(&word, bytes + i * sizeof word, sizeof word);
        return word;
      };
      sum += (word(from) + ...);
    }
    return sum;
  });
}

/// Reads both buffers as encodeTensorPatch() does, without encoding.
uint64_t compare(std::span<const std::byte> before, std::span<const std::byte> after) {
  ChangedBits changed;
  uint64_t any = 0;
  const uint64_t blockBytes = kPatchBlockElements * kElementBytes;
  for (uint64_t at = 0; at < after.size(); at += blockBytes) {
    const uint64_t bytes = std::min(blockBytes, after.size() - at);
    changedBits(before.data() + at, after.data() + at, bytes / kElementBytes, kElementBytes, changed.data());
    any += changed[0];
  }
  return any;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

/// A patch to measure with.
struct Made {
  PatchKind kind = PatchKind::same;
  std::vector<std::byte> bytes;
  ContentSum sum;

  TensorPatch patch() const { return {kind, bytes}; }
};

Made make(std::span<const std::byte> before, std::span<const std::byte> after) {
  Made made{.sum = contentSum(before)};
  made.kind = *encodeTensorPatch(readerOf(before), after, kElementBytes, made.sum, made.bytes);
  require(made.sum == contentSum(after), "the sum of a patch is wrong");
  return made;
}

Json sizes(std::span<const std::byte> before, const Floats& after) {
  Json sizes = Json::array();
  for (const double density : {0.003, 0.01, 0.03, 0.08}) {
    std::ranges::copy(before, bytesOf(after).begin());
    scatter(bytesOf(after), density, 7);
    const Made made = make(before, bytesOf(after));
    const double count = static_cast<double>(before.size()) / kElementBytes;
    const double bits = entropyBits(density) + density * 8 * kElementBytes;
    sizes.push_back(
        {{"density", density}, {"bytes", made.bytes.size()}, {"entropy_bytes", count * bits / 8}});
  }
  return sizes;
}

Json measureAll(uint64_t bytes, double seconds) {
  const Floats before(bytes), after(bytes), later(bytes);
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytesOf(before).data() + at, &word, sizeof word);
  }
  Json out = {{"bytes", bytes}, {"sizes", sizes(bytesOf(before), after)}};
  std::ranges::copy(bytesOf(before), bytesOf(after).begin());
  scatter(bytesOf(after), 0.01, 7);
  std::ranges::copy(bytesOf(after), bytesOf(later).begin());
  scatter(bytesOf(later), 0.01, 8);
  const Made first = make(bytesOf(before), bytesOf(after)), second = make(bytesOf(after), bytesOf(later));

  uint64_t iterations = 0, found = 0;
  const auto rate = [&](const char* name, uint64_t of, const std::function<void()>& work) {
    const Timing timing = measure(seconds, work);
    iterations += timing.iterations;
    out[name] = static_cast<double>(of) / timing.median;
  };
  rate("read_both_bytes_per_s", 2 * bytes, [&] { found += read(bytesOf(before), bytesOf(after)); });
  rate("read_bytes_per_s", bytes, [&] { found += read(bytesOf(before)); });
  rate("compare_bytes_per_s", 2 * bytes, [&] { found += compare(bytesOf(before), bytesOf(after)); });
  std::vector<std::byte> encoded;
  ContentSum sum;
  rate("make_bytes_per_s", 2 * bytes, [&] {
    encoded.clear();
    static_cast<void>(
        encodeTensorPatch(readerOf(bytesOf(before)), bytesOf(after), kElementBytes, sum, encoded));
  });
  rate("sum_bytes_per_s", bytes, [&] { found += contentSum(bytesOf(before)).first; });
  bool applied = true;
  rate("verify_bytes_per_s", bytes, [&] {
    applied &= checkTensorPatch(first.patch(), {bytes, kElementBytes}).ok();
  });
  rate("apply_bytes_per_s", bytes,
       [&] { applied &= applyTensorPatch(first.patch(), kElementBytes, bytesOf(before), sum).ok(); });
  std::vector<std::byte> merged;
  rate("merge_bytes_per_s", bytes, [&] {
    merged.clear();
    applied &= mergeTensorPatches(first.patch(), second.patch(), {bytes, kElementBytes}, merged).ok();
  });
  ContentSum updated = first.sum;
  applied &= applyTensorPatch({PatchKind::overwrite, merged}, kElementBytes, bytesOf(before), updated).ok();
  require(applied && updated == second.sum, "a patch was not applied");
  require(std::ranges::equal(bytesOf(before), bytesOf(later)), "patched bytes differ");
  out["iterations"] = iterations;
  out["found"] = found;  // so that no loop is left out
  return out;
}

int run(int argc, char** argv) {
  uint64_t bytes = 256u << 20;
  double seconds = 0.5;
  CLI::App app("Measures patches between versions of one bf16 tensor.", "psd-bench-patches");
  app.add_option("--size", bytes, "bytes of the tensor, a multiple of 4")
      ->check(CLI::Range(uint64_t{1} << 16, uint64_t{1} << 36));
  app.add_option("--seconds", seconds, "of each measurement")->check(CLI::Range(0., 3600.));
  CLI11_PARSE(app, argc, argv);
  std::printf("%s\n", measureAll(bytes / 4 * 4, seconds).dump().c_str());
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  return psd::bench::runProgram("psd-bench-patches", psd::bench::run, argc, argv);
}

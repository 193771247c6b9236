// psd-bench-sparse-training: writes a file of Criteo's form, for a measurement of psd-trainer, and trains a
// logistic regression on it by FTRL-Proximal, in one thread of one process, without psd's daemon. Prints one
// JSON object.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/types/row_hash.h"
#include "test/bench/bench_program.h"
#include "test/bench/sparse_data.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/epoch_samples.h"
#include "trainer/task/sparse_columns.h"

namespace psd::bench {
namespace {

/// FTRL-Proximal with per-coordinate rates (McMahan et al. 2013, algorithm 1): a step per example. Weights
/// are found by id, with open addressing, in memory that doubles.
class PlainFtrl {
 public:
  /// Returns the example's log loss before its step.
  float step(const int64_t* ids, const float* values, size_t width, bool label) {
    float logit = bias_.weight();
    places_.clear();
    if (2 * (used_ + width) > entries_.size()) grow();  // first, since places_ has addresses of entries
    for (size_t i = 0; i < width; ++i) {
      if (values[i] == 0) continue;
      Entry& entry = entryOf(static_cast<uint64_t>(ids[i]));
      entry.newest = entry.weight();
      logit += entry.newest * values[i];
      places_.push_back({&entry, values[i]});
    }
    const float probability = 1 / (1 + std::exp(-logit)), error = probability - (label ? 1.f : 0.f);
    bias_.newest = bias_.weight();
    bias_.add(error);
    for (const auto& [entry, value] : places_) entry->add(error * value);
    return std::log1p(std::exp(label ? -logit : logit));
  }
  uint64_t features() const { return used_; }

 private:
  static constexpr float kAlpha = 0.1f, kBeta = 1, kL1 = 0.005f;

  struct Entry {
    float weight() const {
      if (std::fabs(z) <= kL1) return 0;
      return (std::copysign(kL1, z) - z) / ((kBeta + std::sqrt(n)) / kAlpha);
    }
    void add(float gradient) {
      const float sum = n + gradient * gradient;
      z += gradient - (std::sqrt(sum) - std::sqrt(n)) / kAlpha * newest;
      n = sum;
    }

    uint64_t id = 0;
    float z = 0, n = 0, newest = 0;
    bool used = false;
  };
  struct Place {
    Entry* entry;
    float value;
  };

  Entry& entryOf(uint64_t id) {
    const size_t mask = entries_.size() - 1;
    for (size_t at = rowHash(id) & mask;; at = (at + 1) & mask) {
      Entry& entry = entries_[at];
      if (!entry.used) {
        entry = {.id = id, .used = true};
        used_++;
        return entry;
      }
      if (entry.id == id) return entry;
    }
  }

  void grow() {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    used_ = 0;
    for (const Entry& entry : old) {
      if (entry.used) entryOf(entry.id) = entry;
    }
  }

  Entry bias_;
  std::vector<Entry> entries_ = std::vector<Entry>(1 << 16);  // a power of two, at most half in use
  uint64_t used_ = 0;
  std::vector<Place> places_;  // of the example
};

int run(int argc, char** argv) {
  uint64_t bytes = 128u << 20, batchSize = 1024;
  std::string path;
  CLI::App app("Trains by FTRL-Proximal in one thread.", "psd-bench-sparse-training");
  app.add_option("FILE", path, "file to write")->required();
  app.add_option("--size", bytes, "bytes of the text")->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 31));
  app.add_option("--batch-size", batchSize, "examples that are read together")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  writeText(path, criteoText(bytes));
  const auto opened = openExamples("criteo", path);
  const Dataset& data = *opened;

  PlainFtrl model;
  Batch batch;
  double loss = 0;
  EpochSamples samples(1, data, Rank{0}, 1);
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t begin = 0; begin < samples.partSize(); begin += batchSize) {
    check(data.fill(samples.take(0, begin, std::min(batchSize, samples.partSize() - begin)), batch));
    const auto ids = batch.values<int64_t>(kSparseIds);
    const auto values = batch.values<float>(kSparseValues);
    const auto labels = batch.values<int64_t>(kSparseLabel);
    const size_t width = ids.size() / batch.size();
    for (size_t i = 0; i < batch.size(); ++i) {
      loss += static_cast<double>(model.step(&ids[i * width], &values[i * width], width, labels[i] != 0));
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;

  const auto examples = static_cast<double>(data.sampleCount());
  const nlohmann::ordered_json out = {{"examples", data.sampleCount()},
                                      {"features", model.features()},
                                      {"loss", loss / examples},
                                      {"examples_per_s", examples / seconds.count()}};
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  return psd::bench::runProgram("psd-bench-sparse-training", psd::bench::run, argc, argv);
}

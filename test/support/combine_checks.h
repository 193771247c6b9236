#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/storage_calls.h"

namespace psd::testing {

/// Gradients, one per row. With `coarse` there are few distinct values, hence ties.
inline std::vector<std::vector<float>> drawGradients(Random& random, size_t count, size_t elements,
                                                     bool coarse) {
  std::normal_distribution<float> normal(0.f, 3.f);
  std::vector<std::vector<float>> rows(count, std::vector<float>(elements));
  for (auto& row : rows) {
    for (float& value : row) value = coarse ? std::round(normal(random.engine())) : normal(random.engine());
  }
  return rows;
}

/// The combination, computed in double without optimizations.
inline std::vector<double> combinedReference(const std::vector<std::vector<float>>& rows,
                                             const Combination& combination) {
  std::vector<double> result(rows[0].size());
  for (size_t i = 0; i < result.size(); i++) {
    std::vector<double> column;
    for (const auto& row : rows) column.push_back(row[i]);
    if (combination.kind == Combination::Kind::trimmedMean) {
      std::sort(column.begin(), column.end());
      const size_t last = column.size() - combination.trim;
      for (size_t k = combination.trim; k < last; k++) result[i] += column[k];
      result[i] /= static_cast<double>(last - combination.trim);
    } else {
      combination.forEachWeights(i, 1, [&](std::span<const float> weights, uint64_t, uint64_t) {
        for (size_t k = 0; k < column.size(); k++) result[i] += weights[k] * column[k];
      });
    }
  }
  return result;
}

/// One shard of a backend whose optimizer is w ← w − g, with gradients staged there.
class CombineBench {
 public:
  CombineBench(Backend& backend, const std::vector<std::vector<float>>& rows) {
    Optimizer optimizer;
    optimizer.fullLearningRate = 1;
    auto shards = backend.allocate(std::vector<uint64_t>{rows[0].size()}, optimizer);
    PSD_REQUIRE_OK(shards);
    storage_ = std::move((*shards)[0]);
    calls_ = std::make_unique<StorageCalls>(backend, *storage_);
    for (const auto& row : rows) {
      auto gradient = calls_->stage(ReadView{row, nullptr});
      PSD_REQUIRE_OK(gradient);
      staged_.push_back(*gradient);
    }
  }

  std::vector<float> combined(const Combination& combination) {
    const uint64_t count = storage_->elementCount();
    PSD_REQUIRE_OK(calls_->write(0, std::vector<float>(count, 0.f)));
    PSD_REQUIRE_OK(calls_->applyCombined(staged_, combination, {1, 1.0}));
    auto weights = calls_->read(0, count);
    PSD_REQUIRE_OK(weights);
    std::vector<float> result = copyOf(*weights);
    for (float& value : result) value = -value;
    return result;
  }

  SquaredDistances distances() {
    auto found = calls_->squaredDistances(staged_);
    PSD_REQUIRE_OK(found);
    return *found;
  }

  /// The inner products, accumulated over consecutive runs of elements.
  InnerProducts products(const std::vector<uint64_t>& runs) {
    InnerProducts sums(staged_.size());
    uint64_t at = 0;
    for (const uint64_t count : runs) {
      auto more = calls_->addProducts(staged_, at, count, std::move(sums));
      PSD_REQUIRE_OK(more);
      sums = *std::move(more);
      at += count;
    }
    REQUIRE(at == storage_->elementCount());
    return sums;
  }

  StorageCalls& calls() { return *calls_; }
  const std::vector<StagedGradient>& staged() const { return staged_; }

 private:
  std::unique_ptr<ShardStorage> storage_;
  std::unique_ptr<StorageCalls> calls_;
  std::vector<StagedGradient> staged_;
};

/// The combinations that aggregators request for `count` gradients: each median and trimmed mean, and sums.
inline std::vector<Combination> drawCombinations(Random& random, size_t count) {
  std::vector<Combination> found;
  for (uint32_t trim = 0; 2 * trim < count; trim += 1 + trim / 4) {
    found.push_back({.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = trim});
  }
  found.push_back(
      {.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = static_cast<uint32_t>(count - 1) / 2});
  Combination sum, one;
  for (size_t i = 0; i < count; i++) {
    sum.weights.push_back(random.oneIn(5) ? 0.f : static_cast<float>(random.between(1, 100)) / 1000.f);
  }
  one.weights.assign(count, 0.f);
  one.weights[random.below(count)] = 1;
  found.push_back(std::move(sum));
  found.push_back(std::move(one));
  return found;
}

/// Weights for runs that cover `elements` elements, each of one grain or more.
inline Combination drawRanges(Random& random, size_t count, uint64_t elements) {
  Combination drawn;
  drawn.weights.assign(count, 100.f);  // no range's weights
  for (uint64_t at = 0; at < elements;) {
    const uint64_t run = std::min<uint64_t>(16 * random.between(1, 100), elements - at);
    drawn.ranges.push_back({at, run, {}});
    for (size_t i = 0; i < count; i++) {
      drawn.ranges.back().weights.push_back(random.oneIn(4) ? 0.f
                                                            : static_cast<float>(random.below(100)) / 100.f);
    }
    at += run;
  }
  return drawn;
}

/// Medians and trimmed means of finite values are finite, however large the values are, and no larger.
inline void checkLargestValues(Backend& backend) {
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr size_t kElements = 200;
  for (const size_t count : {2, 4, 5, 9, 16}) {
    std::vector<std::vector<float>> rows(count, std::vector<float>(kElements, kMost));
    for (auto& row : rows) std::fill(row.begin() + kElements / 2, row.end(), -kMost);
    CombineBench bench(backend, rows);
    for (uint32_t trim = 0; 2 * trim < count; trim++) {
      INFO(count << " gradients, trim " << trim);
      CHECK(bench.combined({.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = trim}) == rows[0]);
    }
  }
}

/// Compares a backend with the reference for `count` gradients of `elements`.
inline void checkCombinations(Backend& backend, size_t count, size_t elements, bool coarse) {
  INFO(count << " gradients of " << elements << " elements" << (coarse ? ", with ties" : ""));
  Random random(count * 1000003 + elements);
  const auto rows = drawGradients(random, count, elements, coarse);
  CombineBench bench(backend, rows);
  std::vector<Combination> combinations = drawCombinations(random, count);
  combinations.push_back(drawRanges(random, count, elements));
  for (const Combination& combination : combinations) {
    const bool trimmed = combination.kind == Combination::Kind::trimmedMean;
    INFO((trimmed ? "trim " + std::to_string(combination.trim) : "weighted sum"));
    const auto expected = combinedReference(rows, combination);
    const auto actual = bench.combined(combination);
    // combine() returns what is applied, bit for bit.
    const auto taken = bench.calls().combine(bench.staged(), combination);
    PSD_REQUIRE_OK(taken);
    CHECK(copyOf(*taken) == actual);
    // Rounding of up to `count` additions of values below 20.
    const double tolerance = 20 * 6e-8 * static_cast<double>(count + 1);
    double worst = 0;
    for (size_t i = 0; i < elements; i++) worst = std::max(worst, std::abs(actual[i] - expected[i]));
    CHECK(worst <= tolerance);
  }
}

/// Runs of whole grains, and a remainder.
inline std::vector<uint64_t> drawRuns(Random& random, uint64_t elements) {
  std::vector<uint64_t> runs;
  for (uint64_t at = 0; at < elements; at += runs.back()) {
    runs.push_back(std::min<uint64_t>(16 * random.between(1, 80), elements - at));
  }
  return runs;
}

/// Inner products match a reference, and have the same bits wherever the vectors are cut at the grain.
inline void checkProducts(Backend& backend, size_t count, size_t elements) {
  INFO(count << " gradients of " << elements << " elements");
  Random random(count * 1000003 + elements);
  const auto rows = drawGradients(random, count, elements, false);
  CombineBench bench(backend, rows);
  const InnerProducts whole = bench.products({elements});
  REQUIRE(whole.vectors() == count);
  for (size_t a = 0; a < count; a++) {
    for (size_t b = 0; b < count; b++) {
      double expected = 0;
      for (size_t i = 0; i < elements; i++) expected += double{rows[a][i]} * rows[b][i];
      REQUIRE(std::abs(whole.between(a, b) - expected) <= 1e-9 * static_cast<double>(elements));
    }
  }
  for (int cut = 0; cut < 5; cut++) {
    const InnerProducts parts = bench.products(drawRuns(random, elements));
    for (size_t a = 0; a < count; a++) {
      for (size_t b = a; b < count; b++) REQUIRE(parts.between(a, b) == whole.between(a, b));
    }
  }
}

inline void checkDistances(Backend& backend, size_t count, size_t elements) {
  INFO(count << " gradients of " << elements << " elements");
  Random random(count * 1000003 + elements);
  const auto rows = drawGradients(random, count, elements, false);
  const SquaredDistances distances = CombineBench(backend, rows).distances();
  REQUIRE(distances.vectors() == count);
  for (size_t a = 0; a < count; a++) {
    CHECK(distances.between(a, a) == 0);
    for (size_t b = 0; b < a; b++) {
      double expected = 0;
      for (size_t i = 0; i < elements; i++) {
        expected += (double{rows[a][i]} - rows[b][i]) * (double{rows[a][i]} - rows[b][i]);
      }
      REQUIRE(std::abs(distances.between(a, b) - expected) <= 1e-5 * expected + 1e-12);
      REQUIRE(distances.between(b, a) == distances.between(a, b));
    }
  }
}

}  // namespace psd::testing

#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/store/backend.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/storage_calls.h"

namespace psd::testing {

inline std::vector<float> normalFloats(size_t count, Random& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random.engine());
  return values;
}

/// A shard under plain SGD, computed in double without optimizations.
class ChangedReference {
 public:
  explicit ChangedReference(const std::vector<float>& weights)
      : weights_(weights.begin(), weights.end()), meanSquares_(weights.size()) {}

  void apply(std::span<const float> gradient, const GradientChange& change, double rate) {
    for (size_t i = 0; i < weights_.size(); i++) {
      double g = std::clamp(double{change.scale} * gradient[i], -double{change.limit}, double{change.limit});
      if (!change.pulled.empty()) {
        double lambda = change.lambda;
        if (change.adaptive) {
          meanSquares_[i] = 0.95 * meanSquares_[i] + 0.05 * g * g;
          lambda /= std::sqrt(meanSquares_[i] + 1e-7);
        }
        g += lambda * g * g * (weights_[i] - change.pulled[i]);
      }
      weights_[i] -= rate * g;
    }
  }
  double worst(std::span<const float> actual) const {
    double worst = actual.size() == weights_.size() ? 0 : INFINITY;
    for (size_t i = 0; i < std::min(actual.size(), weights_.size()); i++) {
      worst = std::max(worst, std::abs(actual[i] - weights_[i]) / (1 + std::abs(weights_[i])));
    }
    return worst;
  }

 private:
  std::vector<double> weights_, meanSquares_;
};

/// Every kind of change, without its weights.
inline std::vector<std::pair<std::string, GradientChange>> changes() {
  return {{"none", {}},
          {"norm", {.scale = 0.3f}},
          {"value", {.limit = 0.5f}},
          {"both", {.scale = 2.f, .limit = 1.f}},
          {"compensation", {.pulled = {}, .lambda = 0.2f}},
          {"clipped compensation", {.limit = 0.7f, .pulled = {}, .lambda = 0.2f}},
          {"adaptive compensation", {.pulled = {}, .lambda = 0.1f, .adaptive = true}}};
}

/// Compares a backend with the reference: several updates of one shard in pieces, with gradients as float32
/// or, with `codec`, as decoded by that codec.
inline void checkChanges(Backend& backend, size_t elements, const Codec* codec = nullptr) {
  constexpr double kRate = 0.125;
  for (auto& [name, change] : changes()) {
    INFO(elements << " elements, " << name << (codec ? ", " + std::string(codec->name()) : ""));
    Random random(elements);
    Optimizer optimizer;
    auto shards = backend.allocate(std::vector<uint64_t>{elements}, optimizer);
    PSD_REQUIRE_OK(shards);
    StorageCalls calls(backend, *(*shards)[0]);
    const auto start = normalFloats(elements, random);
    PSD_REQUIRE_OK(calls.write(0, start));
    ChangedReference reference(start);
    for (uint64_t number = 1; number <= 4; number++) {
      auto gradient = normalFloats(elements, random);
      const auto pulled = normalFloats(elements, random);
      GradientChange whole = change;
      if (whole.lambda != 0) whole.pulled = pulled;
      const uint64_t half = codec ? 0 : elements / 2 / 16 * 16;
      const auto part = [&](uint64_t begin, uint64_t count) {
        GradientChange piece = whole;
        if (!piece.pulled.empty()) piece.pulled = piece.pulled.subspan(begin, count);
        return piece;
      };
      if (codec) {
        std::vector<uint64_t> memory(codec->encodedBytes(elements) / 8 + 2);
        auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
        PSD_REQUIRE_OK(codec->encode(gradient, number, bytes));
        const Codec::Bytes encoded(bytes, codec->encodedBytes(elements));
        PSD_REQUIRE_OK(calls.applyChanged(0, Gradient(*codec, encoded, elements), whole, {number, kRate}));
        codec->decode(encoded, elements, 0, gradient);
      } else {
        const auto values = std::span<const float>(gradient);
        if (half > 0) {
          PSD_REQUIRE_OK(calls.applyChanged(0, values.first(half), part(0, half), {number, kRate}));
        }
        PSD_REQUIRE_OK(
            calls.applyChanged(half, values.subspan(half), part(half, elements - half), {number, kRate}));
      }
      reference.apply(gradient, whole, kRate);
    }
    auto weights = calls.read(0, elements);
    PSD_REQUIRE_OK(weights);
    CHECK(reference.worst(weights->values) < 2e-6);
  }
}

/// Compares a backend with the reference for the gradients of a round: their squared norm, and their clipped
/// sum.
inline void checkCombinedChanges(Backend& backend, size_t elements) {
  INFO(elements << " elements");
  Random random(elements);
  auto shards = backend.allocate(std::vector<uint64_t>{elements}, Optimizer());
  PSD_REQUIRE_OK(shards);
  StorageCalls calls(backend, *(*shards)[0]);
  const std::vector<float> start(elements, 0.f);
  PSD_REQUIRE_OK(calls.write(0, start));
  std::vector<std::vector<float>> rows;
  std::vector<StagedGradient> staged;
  for (int i = 0; i < 3; i++) {
    rows.push_back(normalFloats(elements, random));
    auto one = calls.stage(ReadView{rows.back(), nullptr});
    PSD_REQUIRE_OK(one);
    staged.push_back(*one);
  }
  Combination sum;
  sum.weights = {0.5f, 0.25f, 0.25f};
  std::vector<float> combined(elements);
  double square = 0;
  for (size_t i = 0; i < elements; i++) {
    combined[i] = 0.5f * rows[0][i] + 0.25f * rows[1][i] + 0.25f * rows[2][i];
    square += double{combined[i]} * combined[i];
  }
  const auto found = calls.combinedSquare(staged, sum);
  PSD_REQUIRE_OK(found);
  CHECK(std::abs(*found - square) <= 1e-6 * square);
  sum.change = {.scale = 0.5f, .limit = 0.2f};
  PSD_REQUIRE_OK(calls.applyCombined(staged, sum, {1, 1.0}));
  ChangedReference reference(start);
  reference.apply(combined, sum.change, 1.0);
  auto weights = calls.read(0, elements);
  PSD_REQUIRE_OK(weights);
  CHECK(reference.worst(weights->values) < 2e-6);
}

}  // namespace psd::testing

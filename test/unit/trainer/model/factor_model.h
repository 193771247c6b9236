#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/types/model_layout.h"
#include "trainer/model/model.h"

namespace psd::testing {

/// Matrix factorisation without LibTorch: a Model with embedding tables. A rating is a mean, which is dense,
/// plus the product of a row of "user" and a row of "item". Owned by one thread.
class FactorModel : public Model {
 public:
  static constexpr uint32_t kUser = 0, kItem = 1, kDim = 6;

  /// From this call of computeGradients() on (counted from 1) a row's gradient holds infinity; 0: never.
  uint64_t infiniteFromCall = 0;
  /// Of every batch that was trained on: the address of its rows.
  std::vector<const float*> blocks;

  const ModelSpec& spec() const override { return spec_; }
  std::vector<ColumnSpec> inputs() const override {
    return {{"user", ElementType::i64, {}}, {"item", ElementType::i64, {}}, {"rating", ElementType::f32, {}}};
  }
  std::string device() const override { return "cpu"; }
  std::span<float> parameters() override { return parameters_.front(); }
  std::span<float> gradients() override { return gradients_.front(); }

  Status reserve(uint32_t gradientArrays, bool spare) override {
    gradients_.resize(gradientArrays, std::vector<float>(size()));
    parameters_.resize(spare ? 2 : 1, std::vector<float>(size()));
    return {};
  }
  std::span<float> spareParameters() override {
    return parameters_.size() == 1 ? std::span<float>() : parameters_.back();
  }
  void swapParameters() override { std::swap(parameters_.front(), parameters_.back()); }
  void rotateGradients() override {
    std::rotate(gradients_.begin(), gradients_.begin() + 1, gradients_.end());
  }

  std::vector<RowLookup> lookUp(const Batch& batch, Purpose) override {
    const auto idsOf = [&](const char* column) {
      const auto ids = batch.values<int64_t>(column);
      return std::vector<uint64_t>(ids.begin(), ids.end());
    };
    return {{"user rows", kUser, idsOf("user")}, {"item rows", kItem, idsOf("item")}};
  }

  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override {
    std::ranges::fill(gradients(), 0.f);
    const BatchRows& rows = batch.rows();
    blocks.push_back(rows.blocks[kUser].values.data());
    double loss = 0;
    const auto samples = static_cast<float>(batch.size());
    for (size_t n = 0; n < batch.size(); ++n) {
      const float error = errorOf(batch, n);
      loss += error * error / samples;
      const float slope = 2 * error / samples;
      gradients()[0] += slope;
      for (size_t d = 0; d < kDim; ++d) {
        rows.blocks[kUser].gradients[at(batch, kUser, n) + d] += slope * valueOf(batch, kItem, n, d);
        rows.blocks[kItem].gradients[at(batch, kItem, n) + d] += slope * valueOf(batch, kUser, n, d);
      }
    }
    if (++calls_ >= infiniteFromCall && infiniteFromCall != 0) {
      rows.blocks[kItem].gradients[at(batch, kItem, 1) + 2] = std::numeric_limits<float>::infinity();
    }
    if (whenFinal) whenFinal(0, gradients().size());
    return loss;
  }

  Result<Score> score(const Batch& batch) override {
    double squares = 0;
    for (size_t n = 0; n < batch.size(); ++n) squares += std::pow(errorOf(batch, n), 2);
    const auto samples = static_cast<double>(batch.size());
    return Score{batch.size(),
                 {Metric::of("loss", MetricKind::mean, squares, samples),
                  Metric::of("rmse", MetricKind::root, squares, samples)}};
  }

 private:
  size_t size() const { return ModelLayout(spec_).totalElements(); }
  static size_t at(const Batch& batch, size_t lookup, size_t n) {
    return static_cast<size_t>(batch.rows().lookups[lookup].places[n]) * kDim;
  }
  static float valueOf(const Batch& batch, size_t lookup, size_t n, size_t d) {
    return batch.rows().blocks[lookup].values[at(batch, lookup, n) + d];
  }
  float errorOf(const Batch& batch, size_t n) const {
    float rating = parameters_.front()[0];
    for (size_t d = 0; d < kDim; ++d) rating += valueOf(batch, kUser, n, d) * valueOf(batch, kItem, n, d);
    return rating - batch.values<float>("rating")[n];
  }

  const ModelSpec spec_{"factors",
                        {{"mean", DType::f32, {}}},
                        {{"user", kDim, {RowInitial::Kind::uniform, 0.5f, 1}},
                         {"item", kDim, {RowInitial::Kind::uniform, 0.5f, 2}}}};
  std::vector<std::vector<float>> parameters_{std::vector<float>(size())},
      gradients_{std::vector<float>(size())};  ///< the first of each is in use
  uint64_t calls_ = 0;
};

}  // namespace psd::testing

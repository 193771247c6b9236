#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/types/model_layout.h"
#include "trainer/model/model.h"

namespace psd::testing {

/// Softmax regression on 28 × 28 images: a Model without LibTorch. Owned by one thread.
class SoftmaxModel : public Model {
 public:
  SoftmaxModel()
      : spec_{"softmax", {{"weight", DType::f32, {kClasses, kPixels}}, {"bias", DType::f32, {kClasses}}}},
        layout_(spec_),
        parameters_(1, std::vector<float>(layout_.totalElements())),
        gradients_(1, std::vector<float>(layout_.totalElements())) {}

  /// From this call of computeGradients() on (counted from 1) the bias's gradient holds a NaN; 0: never.
  uint64_t nanFromCall = 0;

  /// The argument of assignRank(); -1: not called.
  int64_t rank = -1;

  const ModelSpec& spec() const override { return spec_; }
  void assignRank(Rank given) override { rank = given.value; }
  std::vector<ColumnSpec> inputs() const override {
    return {{"image", ElementType::f32, {1, 28, 28}}, {"label", ElementType::i64, {}, kClasses}};
  }
  std::string device() const override { return "cpu"; }
  std::span<float> parameters() override { return parameters_.front(); }
  std::span<float> gradients() override { return gradients_.front(); }

  Status reserve(uint32_t gradientArrays, bool spare) override {
    gradients_.resize(gradientArrays, std::vector<float>(layout_.totalElements()));
    parameters_.resize(spare ? 2 : 1, std::vector<float>(layout_.totalElements()));
    return {};
  }
  std::span<float> spareParameters() override {
    return parameters_.size() == 1 ? std::span<float>() : parameters_.back();
  }
  void swapParameters() override { std::swap(parameters_.front(), parameters_.back()); }
  void rotateGradients() override {
    std::rotate(gradients_.begin(), gradients_.begin() + 1, gradients_.end());
  }

  Result<double> computeGradients(const Batch& batch, const GradientsFinal& whenFinal) override {
    std::vector<float>& gradients = gradients_.front();
    std::fill(gradients.begin(), gradients.end(), 0.f);
    const auto samples = static_cast<float>(batch.size());
    const auto images = batch.values<float>("image");
    const auto labels = batch.values<int64_t>("label");
    double loss = 0;
    for (size_t n = 0; n < batch.size(); ++n) {
      std::vector<float> error = probabilities(batch, n);
      loss -= std::log(error[labels[n]]) / samples;
      error[labels[n]] -= 1;
      for (size_t c = 0; c < kClasses; ++c) {
        float* row = gradients.data() + layout_.places()[0].begin + c * kPixels;
        for (size_t p = 0; p < kPixels; ++p) {
          row[p] += error[c] * images[n * kPixels + p] / samples;
        }
        gradients[layout_.places()[1].begin + c] += error[c] / samples;
      }
    }
    if (++calls_ >= nanFromCall && nanFromCall != 0) {
      gradients[layout_.places()[1].begin + 4] = std::numeric_limits<float>::quiet_NaN();
    }
    if (whenFinal) whenFinal(0, gradients.size());
    return loss;
  }

  Result<Score> score(const Batch& batch) override {
    const auto labels = batch.values<int64_t>("label");
    double lossSum = 0, correct = 0;
    for (size_t n = 0; n < batch.size(); ++n) {
      const std::vector<float> p = probabilities(batch, n);
      lossSum -= std::log(p[labels[n]]);
      correct += std::max_element(p.begin(), p.end()) - p.begin() == labels[n];
    }
    const auto samples = static_cast<double>(batch.size());
    return Score{batch.size(),
                 {Metric::of("loss", MetricKind::mean, lossSum, samples),
                  Metric::of("accuracy", MetricKind::share, correct, samples)}};
  }

 private:
  static constexpr size_t kClasses = 10;
  static constexpr size_t kPixels = 28 * 28;

  std::vector<float> probabilities(const Batch& batch, size_t n) const {
    const std::vector<float>& parameters = parameters_.front();
    const auto image = batch.values<float>("image").subspan(n * kPixels, kPixels);
    std::vector<float> p(kClasses);
    for (size_t c = 0; c < kClasses; ++c) {
      const float* row = parameters.data() + layout_.places()[0].begin + c * kPixels;
      p[c] = parameters[layout_.places()[1].begin + c];
      for (size_t i = 0; i < kPixels; ++i) p[c] += row[i] * image[i];
    }
    const float largest = *std::max_element(p.begin(), p.end());
    float sum = 0;
    for (float& value : p) sum += value = std::exp(value - largest);
    for (float& value : p) value /= sum;
    return p;
  }

  ModelSpec spec_;
  ModelLayout layout_;
  std::vector<std::vector<float>> parameters_, gradients_;  ///< the first of each is in use
  uint64_t calls_ = 0;
};

}  // namespace psd::testing

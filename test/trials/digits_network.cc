#include "test/trials/digits_network.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace psd::trials {

DigitsNetwork::DigitsNetwork(size_t hidden)
    : hidden_(hidden),
      errorHidden_(hidden),
      spec_{"digits_network",
            {{"weight1", DType::f32, {kPixels, hidden}},
             {"bias1", DType::f32, {hidden}},
             {"weight2", DType::f32, {hidden, kClasses}},
             {"bias2", DType::f32, {kClasses}}}},
      layout_(spec_) {}

std::vector<float> DigitsNetwork::initialValues(uint64_t seed) const {
  std::mt19937_64 random(seed);
  std::vector<float> values(elementCount());
  const auto fill = [&](Tensor tensor, size_t inputs) {
    std::normal_distribution<float> normal(0.f, std::sqrt(2.f / static_cast<float>(inputs)));
    const TensorPlace& place = layout_.places()[tensor];
    for (uint64_t i = 0; i < place.count; i++) values[place.begin + i] = normal(random);
  };
  fill(kWeight1, kPixels);
  fill(kWeight2, hidden_.size());
  return values;
}

void DigitsNetwork::forward(const float* parameters, const float* image) {
  const size_t hidden = hidden_.size();
  std::copy_n(parameters + begin(kBias1), hidden, hidden_.begin());
  const float* weights = parameters + begin(kWeight1);
  for (size_t p = 0; p < kPixels; p++) {
    for (size_t h = 0; h < hidden; h++) hidden_[h] += image[p] * weights[p * hidden + h];
  }
  std::copy_n(parameters + begin(kBias2), kClasses, probabilities_);
  weights = parameters + begin(kWeight2);
  for (size_t h = 0; h < hidden; h++) {
    hidden_[h] = std::max(hidden_[h], 0.f);
    for (size_t c = 0; c < kClasses; c++) probabilities_[c] += hidden_[h] * weights[h * kClasses + c];
  }
  const float largest = *std::max_element(probabilities_, probabilities_ + kClasses);
  float sum = 0;
  for (float& p : probabilities_) sum += p = std::exp(p - largest);
  for (float& p : probabilities_) p /= sum;
}

double DigitsNetwork::gradient(std::span<const float> parameters, const Batch& batch,
                               std::span<float> gradient) {
  std::fill(gradient.begin(), gradient.end(), 0.f);
  const auto samples = static_cast<float>(batch.size());
  const float* weight2 = parameters.data() + begin(kWeight2);
  const size_t hidden = hidden_.size();
  double loss = 0;
  const auto images = batch.values<float>("image");
  const auto labels = batch.values<int64_t>("label");
  for (size_t n = 0; n < batch.size(); n++) {
    const float* image = images.data() + n * kPixels;
    forward(parameters.data(), image);
    loss -= std::log(std::max(probabilities_[labels[n]], 1e-30f));
    float* error = probabilities_;
    error[labels[n]] -= 1;
    for (size_t c = 0; c < kClasses; c++) error[c] /= samples;

    for (size_t h = 0; h < hidden; h++) {
      float sum = 0;
      for (size_t c = 0; c < kClasses; c++) {
        gradient[begin(kWeight2) + h * kClasses + c] += hidden_[h] * error[c];
        sum += weight2[h * kClasses + c] * error[c];
      }
      errorHidden_[h] = hidden_[h] > 0 ? sum : 0;
      gradient[begin(kBias1) + h] += errorHidden_[h];
    }
    for (size_t c = 0; c < kClasses; c++) gradient[begin(kBias2) + c] += error[c];
    float* gradient1 = gradient.data() + begin(kWeight1);
    for (size_t p = 0; p < kPixels; p++) {
      for (size_t h = 0; h < hidden; h++) gradient1[p * hidden + h] += image[p] * errorHidden_[h];
    }
  }
  return loss / samples;
}

DigitsNetwork::Score DigitsNetwork::score(std::span<const float> parameters, const Batch& batch) {
  Score score;
  const auto images = batch.values<float>("image");
  const auto labels = batch.values<int64_t>("label");
  for (size_t n = 0; n < batch.size(); n++) {
    forward(parameters.data(), images.data() + n * kPixels);
    score.loss -= std::log(std::max(probabilities_[labels[n]], 1e-30f));
    const auto best = std::max_element(probabilities_, probabilities_ + kClasses) - probabilities_;
    score.accuracy += best == labels[n];
  }
  score.loss /= static_cast<double>(batch.size());
  score.accuracy /= static_cast<double>(batch.size());
  return score;
}

}  // namespace psd::trials

#include "trainer/simulate/virtual_model.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <numbers>
#include <utility>

namespace psd {
namespace {

constexpr std::align_val_t kArrayAlignment{64};  // bytes, as Model promises

/// Uniform in 0 < x ≤ 1.
double aboveZero(Random& random) { return static_cast<double>((random.next() >> 11) + 1) * 0x1p-53; }

}  // namespace

void VirtualModel::Free::operator()(float* memory) const { ::operator delete[](memory, kArrayAlignment); }

VirtualModel::VirtualModel(Model& shared, Options options)
    : shared_(shared),
      options_(std::move(options)),
      layout_(shared.spec()),
      noise_(options_.noiseSeed),
      parameters_(zeros()),
      gradients_(zeros()) {
  std::ranges::copy(shared_.parameters(), parameters().begin());
}

VirtualModel::Array VirtualModel::zeros() const {
  const uint64_t count = layout_.totalElements();
  Array array(static_cast<float*>(::operator new[](count * sizeof(float), kArrayAlignment)));
  std::fill_n(array.get(), count, 0.f);
  return array;
}

Status VirtualModel::reserve(uint32_t, bool spare) {
  if (spare && !spare_) spare_ = zeros();
  return {};
}

Result<double> VirtualModel::computeGradients(const Batch& batch, const GradientsFinal& whenFinal) {
  std::ranges::copy(parameters(), shared_.parameters().begin());
  Result<double> loss = shared_.computeGradients(batch);
  if (!loss.ok()) return loss;
  std::ranges::copy(shared_.gradients(), gradients().begin());
  if (options_.noiseDeviation) drawNoise();
  if (!options_.whenComputed()) return Error{ErrorCode::interrupted, "the simulation is over"};
  if (whenFinal) whenFinal(0, gradients().size());
  return loss;
}

void VirtualModel::drawNoise() {
  const std::span<float> out = gradients();
  for (const TensorPlace& place : layout_.places()) {
    for (float& value : out.subspan(place.begin, place.count)) {  // Box and Muller 1958
      const double radius = std::sqrt(-2 * std::log(aboveZero(noise_)));
      value = static_cast<float>(*options_.noiseDeviation * radius *
                                 std::cos(2 * std::numbers::pi * aboveZero(noise_)));
    }
  }
}

Result<Score> VirtualModel::score(const Batch& batch) {
  std::ranges::copy(parameters(), shared_.parameters().begin());
  return shared_.score(batch);
}

}  // namespace psd

#include "trainer/lab/virtual_model.h"

#include <algorithm>
#include <new>
#include <utility>

namespace psd {
namespace {

constexpr std::align_val_t kArrayAlignment{64};  // bytes, as Model promises

}  // namespace

void VirtualModel::Free::operator()(float* memory) const { ::operator delete[](memory, kArrayAlignment); }

VirtualModel::VirtualModel(Model& shared, std::function<bool()> onComputed)
    : shared_(shared),
      onComputed_(std::move(onComputed)),
      layout_(shared.spec()),
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
  if (!onComputed_()) return Error{ErrorCode::interrupted, "the simulation is over"};
  if (whenFinal) whenFinal(0, gradients().size());
  return loss;
}

Result<Score> VirtualModel::score(const Batch& batch) {
  std::ranges::copy(parameters(), shared_.parameters().begin());
  return shared_.score(batch);
}

}  // namespace psd

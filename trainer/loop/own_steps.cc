#include "trainer/loop/own_steps.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

/// to −= rate · by. Plain loops over restricted pointers, which the compiler vectorises.
void subtract(size_t count, float rate, const float* __restrict by, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] -= rate * by[i];
}

}  // namespace

Status OwnSteps::pull(std::span<float> into) {
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_.pull(into).wait());
  basis_ = pulled.versions;
  return {};
}

Status OwnSteps::begin() {
  if (steps_ != 0 || (begun_ && elastic())) return {};
  begun_ = true;
  PSD_RETURN_IF_ERROR(pull(model_.parameters()));
  if (!elastic()) std::ranges::copy(model_.parameters(), model_.spareParameters().begin());
  return {};
}

void OwnSteps::step(uint32_t samples) {
  const std::span<float> w = model_.parameters();
  subtract(w.size(), static_cast<float>(local_.rate), model_.gradients().data(), w.data());
  ++steps_;
  samples_ += samples;
}

Result<Pending<PushInfo>> OwnSteps::exchange(uint64_t number) {
  const std::span<float> w = model_.parameters(), difference = model_.spareParameters();
  if (elastic()) PSD_RETURN_IF_ERROR(pull(difference));
  // What is there now, the centre or where these steps began, less what they came to.
  subtract(w.size(), 1.f, w.data(), difference.data());
  if (elastic()) subtract(w.size(), -static_cast<float>(local_.alpha), difference.data(), w.data());
  steps_ = 0;
  const uint64_t samples = std::min<uint64_t>(std::exchange(samples_, 0), UINT32_MAX);
  return client_.push(Step{number}, difference, static_cast<uint32_t>(samples), basis_);
}

}  // namespace psd

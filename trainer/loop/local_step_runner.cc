#include "trainer/loop/local_step_runner.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

/// to −= rate · by. Plain loops over restricted pointers, which the compiler vectorises.
void subtract(size_t count, float rate, const float* __restrict by, float* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] -= rate * by[i];
}

}  // namespace

Status LocalStepRunner::pull(std::span<float> into) {
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_.pull(into).wait());
  basis_ = pulled.versions;
  return {};
}

Status LocalStepRunner::begin() {
  if (steps_ != 0 || (begun_ && elastic())) return {};
  begun_ = true;
  PSD_RETURN_IF_ERROR(pull(model_.parameters()));
  if (!elastic()) std::ranges::copy(model_.parameters(), model_.spareParameters().begin());
  if (local_.endsEarly) call_ = client_.roundDue(basis_.front());
  due_.reset();
  return {};
}

double LocalStepRunner::step(uint32_t samples) {
  const InnerOptimizer optimizer = optimizerOf(local_);
  ++steps_;
  samples_ += samples;
  const uint64_t version = basis_.empty() ? 0 : basis_.front().value;
  const double rate = optimizer.rateAt(local_.inner ? local_.stepsBefore(version) + steps_ : steps_);
  inner_.step(rate, model_.gradients(), model_.parameters());
  return rate;
}

std::optional<RoundDue> LocalStepRunner::roundDue() {
  if (!call_ || !call_->done()) return due_;
  const Result<RoundDue> answer = call_->wait();
  call_.reset();
  if (answer.ok()) {
    due_ = *answer;
  } else {
    call_ = client_.roundDue(basis_.front());
  }
  return due_;
}

bool LocalStepRunner::due(bool last) {
  const std::optional<RoundDue> due = roundDue();
  return steps_ == local_.period || last || due == RoundDue::closing || due == RoundDue::stepsDone;
}

bool LocalStepRunner::dropLateSteps() {
  if (roundDue() != RoundDue::closed) return false;
  steps_ = samples_ = 0;
  return true;
}

Result<Pending<PushInfo>> LocalStepRunner::exchange(uint64_t number) {
  const std::span<float> w = model_.parameters(), difference = model_.spareParameters();
  if (elastic()) PSD_RETURN_IF_ERROR(pull(difference));
  // The previous contents (EASGD: the center; otherwise the start of these steps) minus the current
  // parameters.
  subtract(w.size(), 1.f, w.data(), difference.data());
  if (elastic()) subtract(w.size(), -static_cast<float>(local_.alpha), difference.data(), w.data());
  const auto count = [](uint64_t& value) {
    return static_cast<uint32_t>(std::min<uint64_t>(std::exchange(value, 0), UINT32_MAX));
  };
  const uint32_t samples = count(samples_), steps = count(steps_);
  return client_.push(Step{number}, difference, {samples, steps}, basis_);
}

}  // namespace psd

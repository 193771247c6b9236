#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "server/optimizer/optimizer_list.h"

namespace psd {

// Optimizer steps for weights in device memory. Other kernels may access these weights: each element is read
// and written whole, which is all that Hogwild! requires.

/// Four floats in one 16-byte access.
struct alignas(16) Four {
  float at[4];
};

/// Leaves gradients unchanged.
struct NoChange {
  __device__ float operator()(float g, float /*w*/, uint64_t /*i*/) const { return g; }
};

/// Corrects the weight at `w` until it is that of the slots in memory, which other kernels may change
/// meanwhile; see server/store/cpu/racy_loops.cc. Reads are volatile: they bypass the L1 cache.
template <class Step, class... Slots>
__device__ void settleOne(const Step& step, float* w, Slots*... slots) {
  volatile float* const target = w;
  for (bool settled = false; !settled;) {
    __threadfence();
    const float values[] = {*static_cast<const volatile float*>(slots)...};
    const float weight = step.weight(values);
    settled = *target == weight || weight != weight;
    if (!settled) *target = weight;
  }
}

/// One step for the weight at `w` and its slots, with `change` applied to gradient element `i`.
template <class Step, class Change, class... Slots>
__device__ void stepOne(const Step& step, const Change& change, uint64_t i, float* w, float g,
                        Slots*... slots) {
  float values[] = {*slots..., 0.f};  // the last element only keeps the array non-empty
  step(*w, change(g, *w, i), values);
  [[maybe_unused]] uint32_t slot = 0;
  ((*slots = values[slot++]), ...);
  if constexpr (settles<Step>()) settleOne(step, w, slots...);
}

/// One step for the four weights at `w` and their slots, with `change` applied to the gradient elements from
/// `first` on.
template <class Step, class Change, class... Slots>
__device__ void stepFour(const Step& step, const Change& change, uint64_t first, Four* w,
                         const Four& gradients, Slots*... slots) {
  Four weights = *w;
  Four states[] = {*slots..., Four{}};
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const float gradient = change(gradients.at[i], weights.at[i], first + i);
    float values[Step::kSlots + 1];
#pragma unroll
    for (uint32_t slot = 0; slot != Step::kSlots; ++slot) values[slot] = states[slot].at[i];
    step(weights.at[i], gradient, values);
#pragma unroll
    for (uint32_t slot = 0; slot != Step::kSlots; ++slot) states[slot].at[i] = values[slot];
  }
  *w = weights;
  [[maybe_unused]] uint32_t slot = 0;
  ((*slots = states[slot++]), ...);
  if constexpr (settles<Step>()) {
    for (uint32_t i = 0; i < 4; ++i) settleOne(step, w->at + i, slots->at + i...);
  }
}

}  // namespace psd

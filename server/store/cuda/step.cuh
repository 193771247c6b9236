#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace psd {

// Steps of an optimizer for weights in device memory. Other kernels may work on these weights: every access
// is whole per element, and that is all that Hogwild! asks for.

/// Four floats in one 16-byte access.
struct alignas(16) Four {
  float at[4];
};

/// Gradients go to the step as they came.
struct NoChange {
  __device__ float operator()(float g, float /*w*/, uint64_t /*i*/) const { return g; }
};

/// One step for a weight at `w` and its slots, with what `change` makes of the gradient's element `i`.
template <class Step, class Change, class... Slots>
__device__ void stepOne(const Step& step, const Change& change, uint64_t i, float* w, float g,
                        Slots*... slots) {
  float values[] = {*slots..., 0.f};  // the last one only so that it is never empty
  step(*w, change(g, *w, i), values);
  [[maybe_unused]] uint32_t slot = 0;
  ((*slots = values[slot++]), ...);
}

/// One step for four weights at `w` and their slots, with what `change` makes of the gradient's elements from
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
}

}  // namespace psd

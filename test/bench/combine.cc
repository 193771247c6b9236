#include <algorithm>
#include <memory>
#include <vector>

#include "server/store/cpu/combine_loops.h"
#include "server/store/cpu/racy_loops.h"
#include "test/bench/references.h"

namespace psd::bench {
namespace {

Combination combinationOf(CombineOperation operation, uint32_t gradients) {
  if (operation == CombineOperation::mean) {
    Combination mean;
    mean.weights.assign(gradients, 1.f / static_cast<float>(gradients));
    return mean;
  }
  const uint32_t trim = operation == CombineOperation::median ? (gradients - 1) / 2 : 1;
  return {.kind = Combination::Kind::trimmedMean, .weights = {}, .trim = trim};
}

}  // namespace

MemoryTiming measureCombine(CombineOperation operation, uint32_t gradients, uint64_t bytes, double seconds) {
  std::vector<std::unique_ptr<Floats>> memory;
  std::vector<StagedGradient> staged;
  for (uint32_t row = 0; row < gradients; ++row) {
    memory.push_back(std::make_unique<Floats>(bytes));
    Floats& values = *memory.back();
    for (uint64_t i = 0; i < values.count(); ++i) {
      values.data()[i] = static_cast<float>((i * 7 + row * 13) % 101) - 50;
    }
    staged.push_back({{values.data(), values.count()}, nullptr});
  }
  if (operation == CombineOperation::distances) {
    double sum = 0;
    const Timing timing = measure(seconds, [&] { sum += squaredDistances(staged).between(0, 1); });
    return {timing, sum > 0 ? gradients * bytes : 0};
  }
  const Combination combination = combinationOf(operation, gradients);
  Combiner combiner(staged, combination);
  const Floats weights(bytes);
  alignas(64) float block[Combiner::kBlockElements];
  const Timing timing = measure(seconds, [&] {
    for (uint64_t offset = 0; offset < weights.count(); offset += Combiner::kBlockElements) {
      const uint64_t some = std::min(Combiner::kBlockElements, weights.count() - offset);
      combiner.combine(offset, some, block);
      racyApply(Optimizer(), {.number = 2, .learningRate = 1e-3}, offset, some, weights.data(), block, {});
    }
  });
  return {timing, (gradients + 2) * bytes};
}

}  // namespace psd::bench

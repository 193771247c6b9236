#pragma once

#include <cstdint>
#include <span>

#include <cuda_runtime.h>

#include "common/status/status.h"
#include "server/store/combination.h"

namespace psd {

/// Backend::comparedGradientsMax().
inline constexpr uint32_t kCombinedOnDeviceMax = 64;

/// Queues out[0 … count) = elements [offset, offset + count) of the combination of `gradients`, all in device
/// memory. ErrorCode::invalidArgument if there are too many.
Status launchCombine(int device, std::span<const StagedGradient> gradients, const Combination& combination,
                     uint64_t offset, uint64_t count, float* out, cudaStream_t stream);

/// Queues the computation of ‖a − b‖² for each pair of gradients of `count` elements; returns the location of
/// the results in `scratch` (a lane's), in the order of SquaredDistances::pairs(). ErrorCode::invalidArgument
/// if there are too many gradients.
Result<const double*> launchDistances(int device, std::span<const StagedGradient> gradients, uint64_t count,
                                      float* scratch, cudaStream_t stream);

/// Queues the addition of the inner products of elements [offset, offset + count) of each pair of gradients
/// to `lanes`, in device memory in the order of InnerProducts::lanes(). ErrorCode::invalidArgument if there
/// are too many gradients.
Status launchProducts(int device, std::span<const StagedGradient> gradients, uint64_t offset, uint64_t count,
                      double* lanes, cudaStream_t stream);

}  // namespace psd

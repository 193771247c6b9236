#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda_runtime.h>

#include "common/types/row_initial.h"
#include "server/optimizer/optimizer.h"
#include "server/store/rows/row_update.h"

namespace psd {

// What is done with rows of a table in the memory of the current device. All pointers are to that memory;
// rows begin at multiples of 16 bytes. Each function queues one kernel or two.

/// Where a plane's floats are, of `count` rows, `width` of each.
struct DevicePlane {
  float* const* places;
  uint64_t offset;  ///< of the first float, from its place on
  uint32_t count, width;
};

/// out[i · width …] = row i of the plane, and the other way round.
cudaError_t gatherOnDevice(const DevicePlane& plane, float* out, cudaStream_t stream);
cudaError_t scatterOnDevice(const DevicePlane& plane, const float* values, cudaStream_t stream);
/// Fills all rows of the plane.
cudaError_t fillPlaneOnDevice(const DevicePlane& plane, float value, cudaStream_t stream);
/// The plane's rows = the initial values of these ids.
cudaError_t fillInitialOnDevice(const DevicePlane& plane, const uint64_t* ids, const RowInitial& initial,
                                cudaStream_t stream);

/// `count` different rows, and the gradients of each, one after the other.
struct DeviceUpdate {
  float* const* rows;      ///< the slots that have a float per value lie behind the values
  float* const* rowSlots;  ///< of each row the slot that is one float; null if the optimizer has none
  const uint32_t* ends;    ///< as RowGroups::ends()
  uint32_t count, dim;
  float* gradients;  ///< `gradientCount` times `dim`, 16-byte aligned; changed by what `change` says
  uint32_t gradientCount;
  const void* steps;       ///< of StagedSteps
  const uint32_t* stepOf;  ///< by gradient, of `steps`; null: the first
};

/// The step functors of some gradients, to be copied to a device.
class StagedSteps {
 public:
  static constexpr uint64_t kStepBytesMax = 64;

  /// Writes the functors of the gradients update.numbers[order[k]] to `steps`, which has kStepBytesMax bytes
  /// for each, and to stepOf[k] which of them is whose; without numbers one functor, and nothing to stepOf.
  /// Gives the bytes that they take.
  static uint64_t write(const Optimizer& optimizer, const RowUpdate& update, std::span<const uint32_t> order,
                        std::byte* steps, uint32_t* stepOf);
};

/// For each row one step for each of its gradients, in their order, with what `change` makes of them. The
/// same bits as racyApplyRows().
cudaError_t applyRowsOnDevice(const Optimizer& optimizer, const UpdateScalars& scalars,
                              const RowChange& change, const DeviceUpdate& update, cudaStream_t stream);

}  // namespace psd

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <cuda_runtime.h>

#include "common/types/row_initial.h"
#include "server/optimizer/optimizer.h"
#include "server/store/rows/row_update.h"

namespace psd {

// Operations on rows of a table in the memory of the current device. All pointers are to that memory; rows
// start at multiples of 16 bytes. Each function queues one or two kernels.

/// Location of the floats of a plane: `width` floats for each of `count` rows.
struct DevicePlane {
  float* const* places;
  uint64_t offset;  ///< of the first float, relative to its place
  uint32_t count, width;
};

/// out[i · width …] = row i of the plane, and the inverse.
cudaError_t gatherOnDevice(const DevicePlane& plane, float* out, cudaStream_t stream);
cudaError_t scatterOnDevice(const DevicePlane& plane, const float* values, cudaStream_t stream);
/// Fills all rows of the plane.
cudaError_t fillPlaneOnDevice(const DevicePlane& plane, float value, cudaStream_t stream);
/// The plane's rows = the initial values of these ids.
cudaError_t fillInitialOnDevice(const DevicePlane& plane, const uint64_t* ids, const RowInitial& initial,
                                cudaStream_t stream);

/// `count` distinct rows, and the gradients of each, grouped by row.
struct DeviceUpdate {
  float* const* rows;      ///< slots with one float per value follow the values
  float* const* rowSlots;  ///< the per-row slot of each row; null if the optimizer has none
  const uint32_t* ends;    ///< RowGroups::ends()
  uint32_t count, dim;
  float* gradients;  ///< `gradientCount` times `dim`, 16-byte aligned; modified in place by `change`
  uint32_t gradientCount;
  const void* steps;       ///< from StagedSteps
  const uint32_t* stepOf;  ///< index into `steps` per gradient; null: the first for all
};

/// The step functors of a set of gradients, to be copied to a device.
class StagedSteps {
 public:
  static constexpr uint64_t kStepBytesMax = 64;

  /// Writes the functors of gradients update.numbers[order[k]] to `steps`, which has space for kStepBytesMax
  /// bytes each, and the index of each gradient's functor to stepOf[k]; without numbers, writes one functor
  /// and nothing to stepOf. Returns the number of bytes written.
  static uint64_t write(const Optimizer& optimizer, const RowUpdate& update, std::span<const uint32_t> order,
                        std::byte* steps, uint32_t* stepOf);
};

/// For each row, one step per gradient in order, with `change` applied to the gradients. Bit-identical to
/// racyApplyRows().
cudaError_t applyRowsOnDevice(const Optimizer& optimizer, const UpdateScalars& scalars,
                              const RowChange& change, const DeviceUpdate& update, cudaStream_t stream);

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd::bench {

/// Parameters of the measurement.
struct RowWork {
  uint64_t rows = 1'000'000;  ///< in the storage
  uint64_t batch = 16'384;    ///< per call, drawn again for each
  std::vector<uint32_t> dims = {16, 64, 128};
  uint32_t rounds = 7;
};

/// One call of a row storage, from host memory to host memory, on the device and in host memory. Times are
/// medians in seconds, by the host's clock. A value type.
struct RowTiming {
  std::string operation;  ///< gather, or the optimizer of an apply
  uint32_t dim = 0;
  uint64_t batch = 0;
  double seconds = 0;
  double hostSeconds = 0;

  double rowsPerSecond() const { return static_cast<double>(batch) / seconds; }
  double hostRowsPerSecond() const { return static_cast<double>(batch) / hostSeconds; }
};

/// Gathers and steps of random rows on the device with that number. ErrorCode::overloaded if the rows do not
/// fit into its memory.
Result<std::vector<RowTiming>> timeRows(int device, const RowWork& work);

}  // namespace psd::bench

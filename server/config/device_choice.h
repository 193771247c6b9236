#pragma once

#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// The device of shards, as configured; whether it exists is checked when the daemon starts. A value type.
struct DeviceChoice {
  enum class Kind { automatic, cpu, cuda };  ///< automatic: CUDA device 0 if there is one, else CPU
  Kind kind = Kind::automatic;
  int index = 0;  ///< CUDA device number, for Kind::cuda

  /// The text that parseDevice() reads.
  std::string toString() const;
  bool operator==(const DeviceChoice&) const = default;
};

/// Highest N in "cuda:N".
inline constexpr int kDeviceIndexMax = 63;

/// Reads "auto", "cpu" or "cuda:N". The error says what is allowed.
Result<DeviceChoice> parseDevice(std::string_view text);

}  // namespace psd

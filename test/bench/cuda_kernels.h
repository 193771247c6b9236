#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd::bench {

/// One optimizer's fused kernel over arrays of one size, and a device-to-device copy in the same run. Times
/// are medians in seconds, by the device's events. A value type.
struct KernelTiming {
  std::string optimizer;
  uint64_t elements = 0;
  uint64_t bytesMoved = 0;  ///< by the kernel: every value that it must read or write
  double seconds = 0;
  uint64_t copyBytesMoved = 0;  ///< read and written
  double copySeconds = 0;

  double bytesPerSecond() const { return static_cast<double>(bytesMoved) / seconds; }
  double copyBytesPerSecond() const { return static_cast<double>(copyBytesMoved) / copySeconds; }
  double share() const { return bytesPerSecond() / copyBytesPerSecond(); }
};

/// Plain SGD on several streams at once over the same weights, each with gradients of its own, in slices like
/// the daemon's. Bytes of all streams together.
struct HogwildTiming {
  uint32_t streams = 0;
  uint64_t elements = 0;
  uint64_t bytesMoved = 0;
  double seconds = 0;

  double bytesPerSecond() const { return static_cast<double>(bytesMoved) / seconds; }
};

/// Measures on one CUDA device. Owned by one thread.
class KernelBench {
 public:
  /// ErrorCode::invalidArgument if there is no such device.
  static Result<KernelBench> onDevice(int device);

  /// Human-readable.
  const std::string& deviceName() const { return name_; }
  /// Measures sgd, momentum, adagrad and adam, alternating with the copy. ErrorCode::overloaded if the device
  /// lacks the memory.
  Result<std::vector<KernelTiming>> optimizers(uint64_t elements, uint32_t rounds);
  /// Measures 1, 2, 4 and 8 streams, alternating.
  Result<std::vector<HogwildTiming>> hogwild(uint64_t elements, uint32_t rounds);

 private:
  KernelBench(int device, std::string name) : device_(device), name_(std::move(name)) {}

  int device_;
  std::string name_;
};

}  // namespace psd::bench

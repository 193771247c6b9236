#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd::bench {

/// One optimizer's fused kernel over arrays of one size, and a device-to-device copy of the same run. Times
/// are medians in seconds, by the device's events. A value type.
struct KernelTiming {
  std::string optimizer;
  uint64_t elements = 0;
  uint64_t bytesMoved =
      0;  ///< by the kernel: every value that it must read, and every one that it must write
  double seconds = 0;
  uint64_t copyBytesMoved = 0;  ///< read and written
  double copySeconds = 0;

  double bytesPerSecond() const { return static_cast<double>(bytesMoved) / seconds; }
  double copyBytesPerSecond() const { return static_cast<double>(copyBytesMoved) / copySeconds; }
  double share() const { return bytesPerSecond() / copyBytesPerSecond(); }
};

/// Plain SGD by several streams at once on the same weights, each with gradients of its own, in slices as the
/// daemon applies them. Bytes of all streams together.
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
  /// ErrorCode::invalidArgument when there is no such device.
  static Result<KernelBench> onDevice(int device);

  /// For people.
  const std::string& deviceName() const { return name_; }
  /// sgd, momentum, adagrad and adam, in turns with the copy. ErrorCode::overloaded when the device has not
  /// the memory.
  Result<std::vector<KernelTiming>> optimizers(uint64_t elements, uint32_t rounds);
  /// 1, 2, 4 and 8 streams, in turns.
  Result<std::vector<HogwildTiming>> hogwild(uint64_t elements, uint32_t rounds);

 private:
  KernelBench(int device, std::string name) : device_(device), name_(std::move(name)) {}

  int device_;
  std::string name_;
};

}  // namespace psd::bench

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// The device on which a trainer or an executor computes. A value type.
struct Device {
  int cuda = -1;  ///< index of the CUDA device; −1: the CPU

  bool isCpu() const { return cuda < 0; }
  std::string toString() const { return isCpu() ? "cpu" : "cuda:" + std::to_string(cuda); }
  bool operator==(const Device&) const = default;
};

/// The CUDA devices visible to LibTorch. A value type.
struct CudaDevices {
  int count = 0;
  std::string fault;  ///< why there are none although a driver is installed
};

/// Does not load LibTorch's CUDA library.
CudaDevices findCudaDevices();

/// Parses "auto", "cpu" or "cuda:N". "auto" selects device localRank mod cudaDevices, or the CPU if there is
/// none. Errors quote the request and name the available devices. Pure.
Result<Device> selectDevice(std::string_view request, uint32_t localRank, int cudaDevices);

/// selectDevice() for this machine; for a CUDA device it also loads LibTorch's CUDA library, which must
/// happen before LibTorch is used. "auto" falls back to the CPU if CUDA cannot be used, and `note` gives the
/// reason.
Result<Device> chooseDevice(std::string_view request, uint32_t localRank, std::string& note);

}  // namespace psd

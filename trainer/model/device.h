#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Where a trainer computes. A value type.
struct Device {
  int cuda = -1;  ///< index of the CUDA device, or −1: the CPU

  bool isCpu() const { return cuda < 0; }
  std::string toString() const { return isCpu() ? "cpu" : "cuda:" + std::to_string(cuda); }
  bool operator==(const Device&) const = default;
};

/// Number of CUDA devices that the driver shows; 0 without a driver. Does not load LibTorch's CUDA part.
int visibleCudaDevices();

/// Reads "auto", "cpu" or "cuda:N". "auto" takes device localRank mod cudaDevices, or the CPU when
/// there is none. Errors quote the request and say what there is. Pure.
Result<Device> selectDevice(std::string_view request, uint32_t localRank, int cudaDevices);

/// selectDevice() for this machine, made ready: for a CUDA device LibTorch's CUDA part is loaded, which
/// has to happen before LibTorch is used. A request of "auto" falls back to the CPU when that
/// cannot be loaded and says why in `note`.
Result<Device> chooseDevice(std::string_view request, uint32_t localRank, std::string& note);

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Where a trainer or an executor computes. A value type.
struct Device {
  int cuda = -1;  ///< index of the CUDA device, or −1: the CPU

  bool isCpu() const { return cuda < 0; }
  std::string toString() const { return isCpu() ? "cpu" : "cuda:" + std::to_string(cuda); }
  bool operator==(const Device&) const = default;
};

/// The CUDA devices that LibTorch would see. A value type.
struct CudaDevices {
  int count = 0;
  std::string fault;  ///< why there are none, where there is a driver that may have some
};

/// Does not load LibTorch's CUDA part.
CudaDevices findCudaDevices();

/// Reads "auto", "cpu" or "cuda:N". "auto" takes device localRank mod cudaDevices, or the CPU when
/// there is none. Errors quote the request and say what there is. Pure.
Result<Device> selectDevice(std::string_view request, uint32_t localRank, int cudaDevices);

/// selectDevice() for this machine, made ready: for a CUDA device LibTorch's CUDA part is loaded, which
/// has to happen before LibTorch is used. A request of "auto" falls back to the CPU when CUDA cannot
/// be used and says why in `note`.
Result<Device> chooseDevice(std::string_view request, uint32_t localRank, std::string& note);

}  // namespace psd

#include "trainer/model/device.h"

#include <charconv>

#include <dlfcn.h>

namespace psd {
namespace {

/// Loads LibTorch's CUDA part for the rest of the process; it registers itself with LibTorch. Found
/// through the program's rpath (torch.cmake).
Status loadTorchCuda() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const char* reason = dlerror();
  return {ErrorCode::unavailable, std::string("LibTorch's CUDA part cannot be loaded: ") +
                                      (reason != nullptr ? reason : "unknown reason")};
}

}  // namespace

int visibleCudaDevices() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded
  if (driver == nullptr) return 0;
  const auto initialize = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto countDevices = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  if (initialize == nullptr || countDevices == nullptr) return 0;
  int count = 0;
  return initialize(0) == 0 && countDevices(&count) == 0 ? count : 0;
}

Result<Device> selectDevice(std::string_view request, uint32_t localRank, int cudaDevices) {
  if (request == "cpu") return Device{};
  if (request == "auto") {
    return cudaDevices == 0 ? Device{} : Device{static_cast<int>(localRank % cudaDevices)};
  }
  constexpr std::string_view kPrefix = "cuda:";
  int index = -1;
  const char* end = request.data() + request.size();
  if (request.starts_with(kPrefix)) {
    const auto parsed = std::from_chars(request.data() + kPrefix.size(), end, index);
    if (parsed.ec != std::errc() || parsed.ptr != end) index = -1;
  }
  if (index < 0) {
    return Error{ErrorCode::invalidArgument,
                 "'" + std::string(request) + "' is not a device; expected auto, cpu or cuda:N"};
  }
  if (index >= cudaDevices) {
    return Error{ErrorCode::invalidArgument,
                 std::string(request) + " is not there; this machine shows " +
                     (cudaDevices == 0 ? "no CUDA device"
                                       : std::to_string(cudaDevices) + " CUDA device(s), from cuda:0")};
  }
  return Device{index};
}

Result<Device> chooseDevice(std::string_view request, uint32_t localRank, std::string& note) {
  const int cudaDevices = request == "cpu" ? 0 : visibleCudaDevices();
  PSD_ASSIGN_OR_RETURN(const Device device, selectDevice(request, localRank, cudaDevices));
  if (device.isCpu()) return device;
  const Status loaded = loadTorchCuda();
  if (loaded.ok()) return device;
  if (request != "auto") return loaded.error();
  note = loaded.message() + "; using the CPU";
  return Device{};
}

}  // namespace psd

#include "trainer/model/device.h"

#include <charconv>

#include <dlfcn.h>

namespace psd {
namespace {

/// Loads LibTorch's CUDA library for the lifetime of the process; it registers itself with LibTorch. Found
/// through the program's rpath (torch.cmake).
Status loadTorchCuda() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
  const char* reason = dlerror();
  return {ErrorCode::unavailable, std::string("LibTorch's CUDA library cannot be loaded: ") +
                                      (reason != nullptr ? reason : "unknown reason")};
}

/// A function of the CUDA runtime, which a CUDA build of LibTorch links even on the CPU; null in other
/// builds.
template <class Function>
Function* runtimeFunction(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

std::string releaseName(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

CudaDevices findCudaDevices() {
  constexpr int kInsufficientDriver = 35, kNoDevice = 100;  // values of cudaError_t
  const auto countDevices = runtimeFunction<int(int*)>("cudaGetDeviceCount");
  const auto errorText = runtimeFunction<const char*(int)>("cudaGetErrorString");
  const auto driverVersion = runtimeFunction<int(int*)>("cudaDriverGetVersion");
  const auto runtimeVersion = runtimeFunction<int(int*)>("cudaRuntimeGetVersion");
  CudaDevices found;
  if (!countDevices || !errorText || !driverVersion || !runtimeVersion) return found;
  const int error = countDevices(&found.count);
  if (error == 0) return found;
  found.count = 0;
  int driver = 0, runtime = 0;
  driverVersion(&driver);
  if (driver == 0 || error == kNoDevice) return found;
  found.fault = std::string("CUDA cannot be used: ") + errorText(error);
  if (error == kInsufficientDriver && runtimeVersion(&runtime) == 0) {
    found.fault +=
        ": the driver is for CUDA " + releaseName(driver) + ", LibTorch for " + releaseName(runtime);
  }
  return found;
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
  const CudaDevices found = request == "cpu" ? CudaDevices{} : findCudaDevices();
  const auto device = selectDevice(request, localRank, found.count);
  if (!device.ok()) {
    const std::string fault = found.fault.empty() ? "" : " (" + found.fault + ")";
    return Error{device.error().code, device.message() + fault};
  }
  const Status loaded = device->isCpu() ? Status() : loadTorchCuda();
  if (!loaded.ok() && request != "auto") return loaded.error();
  const std::string& fault = loaded.ok() ? found.fault : loaded.message();
  if (!fault.empty()) note = fault + "; using the CPU";
  return loaded.ok() ? *device : Device{};
}

}  // namespace psd

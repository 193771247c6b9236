// A libcuda.so.1 for machines without a GPU, found through LD_LIBRARY_PATH: it starts a thread, as the real
// driver does, and returns what a test sets in the environment. It has no device memory, streams or kernels.

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <unistd.h>

namespace {

int fromEnvironment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

int notSupported() { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) {
  std::thread([] {
    for (;;) pause();
  }).detach();
  return fromEnvironment("FAKE_CUDA_INIT", 100);  // CUDA_ERROR_NO_DEVICE
}

int cuDriverGetVersion(int* version) {
  *version = fromEnvironment("FAKE_CUDA_VERSION", 99'000);
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = fromEnvironment("FAKE_CUDA_DEVICES", 1);
  return 0;
}

// NOLINTNEXTLINE(readability-identifier-naming): the name of the driver's function
int cuGetProcAddress_v2(const char* symbol, void** function, int /*version*/, uint64_t /*flags*/,
                        int* found) {
  const std::string_view name = symbol;
  if (found != nullptr) *found = 0;
  *function = name == "cuInit"                ? reinterpret_cast<void*>(cuInit)
              : name == "cuDriverGetVersion"  ? reinterpret_cast<void*>(cuDriverGetVersion)
              : name == "cuDeviceGetCount"    ? reinterpret_cast<void*>(cuDeviceGetCount)
              : name == "cuGetProcAddress"    ? reinterpret_cast<void*>(cuGetProcAddress_v2)
              : name == "cuGetProcAddress_v2" ? reinterpret_cast<void*>(cuGetProcAddress_v2)
                                              : reinterpret_cast<void*>(notSupported);
  return 0;
}

int cuGetProcAddress(const char* symbol, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

}  // extern "C"

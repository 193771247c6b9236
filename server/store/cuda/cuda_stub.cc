// Replaces the CUDA backend in builds without nvcc.

#include <string>

#include "server/store/backend.h"

namespace psd {

Result<std::shared_ptr<Backend>> makeCudaBackend(int index) {
  return Error{ErrorCode::invalidArgument,
               "device cuda:" + std::to_string(index) +
                   ": this psd was built without CUDA; use cpu, or build with PSD_CUDA=ON"};
}

Result<int> cudaDeviceCount() { return 0; }

}  // namespace psd

#pragma once

#include <memory>

#include "server/store/shard_storage.h"
#include "test/support/catch.h"

namespace psd::testing {

/// The first device, or the end of this program, which ctest then shows as skipped.
inline std::shared_ptr<Backend> deviceOrSkip() {
  if (cudaDeviceCount() == 0) skipTest("this machine has no usable CUDA device");
  auto backend = makeCudaBackend(0);
  PSD_REQUIRE_OK(backend);
  return *backend;
}

}  // namespace psd::testing

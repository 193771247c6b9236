#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "server/store/shard_storage.h"
#include "test/support/catch.h"

namespace psd::testing {

/// The first device, or the end of this program, which ctest then shows as skipped.
inline std::shared_ptr<Backend> deviceOrSkip() {
  constexpr int kSkipped = 4;
  if (cudaDeviceCount() == 0) {
    std::puts("skipped: this machine has no usable CUDA device");
    std::fflush(stdout);
    std::_Exit(kSkipped);
  }
  auto backend = makeCudaBackend(0);
  PSD_REQUIRE_OK(backend);
  return *backend;
}

}  // namespace psd::testing

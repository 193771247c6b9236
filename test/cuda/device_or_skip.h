#pragma once

#include <cstdlib>
#include <memory>

#include "server/store/backend.h"
#include "test/support/catch.h"

namespace psd::testing {

/// Set where a test that finds no device is to fail, not to be skipped.
inline bool deviceIsRequired() { return std::getenv("PSD_REQUIRE_CUDA") != nullptr; }

/// The first device, or the end of this program, which ctest then shows as skipped.
inline std::shared_ptr<Backend> deviceOrSkip() {
  const auto count = cudaDeviceCount();
  auto backend = makeCudaBackend(0);
  const bool none = !count.ok() || *count == 0;
  if (none && !deviceIsRequired()) skipTest(backend.error().message);
  PSD_REQUIRE_OK(backend);
  return *backend;
}

}  // namespace psd::testing

#pragma once

#include <memory>

#include "server/store/backend.h"
#include "test/cuda/device_required.h"
#include "test/support/catch.h"

namespace psd::testing {

/// The first device; exits if there is none, which ctest shows as skipped.
inline std::shared_ptr<Backend> deviceOrSkip() {
  const auto count = cudaDeviceCount();
  auto backend = makeCudaBackend(0);
  const bool none = !count.ok() || *count == 0;
  if (none && !deviceIsRequired()) skipTest(backend.error().message);
  PSD_REQUIRE_OK(backend);
  return *backend;
}

}  // namespace psd::testing

#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "server/store/backend.h"
#include "test/support/catch.h"

namespace psd::testing {

/// Where tests have their shards that do not care: the environment's PSD_TEST_DEVICE ("cuda:0"), or "cpu".
inline std::string testDevice() {
  const char* const name = std::getenv("PSD_TEST_DEVICE");
  return name ? name : "cpu";
}

inline bool testsCuda() { return testDevice().starts_with("cuda:"); }

/// That device, where it is CUDA's.
inline std::shared_ptr<Backend> openTestCuda() {
  auto backend = makeCudaBackend(std::stoi(testDevice().substr(std::string("cuda:").size())));
  PSD_REQUIRE_OK(backend);
  return *backend;
}

/// The device of tests that do not care.
inline std::shared_ptr<Backend> testBackend() { return testsCuda() ? openTestCuda() : makeCpuBackend(); }

/// For a test of what only the CPU's memory can do: skipped on another device.
inline void needsCpu() {
  if (testsCuda()) skipTest("of shards on the CPU alone");
}

}  // namespace psd::testing

#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "server/store/backend.h"
#include "test/support/catch.h"

namespace psd::testing {

/// The device of shards in tests that do not depend on one: the environment's PSD_TEST_DEVICE ("cuda:0"), or
/// "cpu".
inline std::string testDevice() {
  const char* const name = std::getenv("PSD_TEST_DEVICE");
  return name ? name : "cpu";
}

inline bool testsCuda() { return testDevice().starts_with("cuda:"); }

/// That device, if it is a CUDA device.
inline std::shared_ptr<Backend> openTestCuda() {
  auto backend = makeCudaBackend(std::stoi(testDevice().substr(std::string("cuda:").size())));
  PSD_REQUIRE_OK(backend);
  return *backend;
}

/// The backend of tests that do not depend on a device.
inline std::shared_ptr<Backend> testBackend() { return testsCuda() ? openTestCuda() : makeCpuBackend(); }

/// For a test that requires memory of the CPU: skipped on another device.
inline void needsCpu() {
  if (testsCuda()) skipTest("tests shards on the CPU");
}

}  // namespace psd::testing

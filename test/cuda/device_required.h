#pragma once

#include <cstdlib>
#include <string_view>

namespace psd::testing {

/// Whether a missing device is a failure instead of a skip: PSD_REQUIRE_CUDA is set to more than 0.
inline bool deviceIsRequired() {
  const char* const value = std::getenv("PSD_REQUIRE_CUDA");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace psd::testing

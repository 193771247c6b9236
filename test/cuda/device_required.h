#pragma once

#include <cstdlib>
#include <string_view>

namespace psd::testing {

/// Whether what finds no device is to fail, not to be skipped: PSD_REQUIRE_CUDA is set, to more than 0.
inline bool deviceIsRequired() {
  const char* const value = std::getenv("PSD_REQUIRE_CUDA");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace psd::testing

#pragma once

// The Catch2 header of either major version.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include "common/status/status.h"

/// Fails the test case with the error's text when a Status or Result is not ok.
#define PSD_REQUIRE_OK(expression)                                \
  do {                                                            \
    auto&& psdChecked = (expression);                             \
    INFO(#expression << ": " << ::psd::testing::why(psdChecked)); \
    REQUIRE(psdChecked.ok());                                     \
  } while (false)

namespace psd::testing {

template <class T>
std::string why(const T& outcome) {
  return outcome.ok() ? std::string() : outcome.error().message;
}

}  // namespace psd::testing

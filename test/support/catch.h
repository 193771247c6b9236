#pragma once

// The Catch2 header of major version 2 or 3.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/status/status.h"

/// Fails the test case with the error's text when a Status or Result is not ok.
#define PSD_REQUIRE_OK(expression)                                \
  do {                                                            \
    auto&& psdChecked = (expression);                             \
    INFO(#expression << ": " << ::psd::testing::why(psdChecked)); \
    REQUIRE(psdChecked.ok());                                     \
  } while (false)

namespace psd::testing {

/// The exit status that ctest takes for "skipped" (SKIP_RETURN_CODE). Only skipTest() ends a test program
/// with it.
inline constexpr int kSkippedExit = 4;

/// Ends this program, and with it the one test case that ctest runs in it.
[[noreturn]] inline void skipTest(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  std::fflush(stdout);
  std::_Exit(kSkippedExit);
}

/// After an event: fails the test case if it violated an invariant of the object.
template <class T>
void requireInvariants(const T& object) {
  if (const std::string violated = object.checkInvariants(); !violated.empty()) FAIL(violated);
}

template <class T>
std::string why(const T& outcome) {
  return outcome.ok() ? std::string() : outcome.error().message;
}

}  // namespace psd::testing

#pragma once

#include <cstdio>
#include <cstdlib>

namespace psd::emulated {

/// Ends the program where a device would hang, crash or silently misbehave.
[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  std::abort();
}

}  // namespace psd::emulated

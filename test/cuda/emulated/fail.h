#pragma once

#include <cstdio>
#include <cstdlib>

namespace psd::emulated {

/// For what a device would answer with a hang, a crash or silence.
[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  std::abort();
}

}  // namespace psd::emulated

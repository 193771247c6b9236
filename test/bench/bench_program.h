#pragma once

#include <cstdio>
#include <exception>

namespace psd::bench {

/// The exit status of a benchmark's main(): that of `run(argc, argv)`, or 1 with the exception's text in one
/// line.
template <class Run>
int runProgram(const char* name, Run run, int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace psd::bench

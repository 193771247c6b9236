#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "common/os/end_by_signal.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/signal_thread.h"

namespace {

/// Ends the program with one line if an exception cannot be caught, such as one that compiled code throws on
/// a thread of LibTorch.
[[noreturn]] void endByLine() {
  std::string what = "no exception";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {
    what = "an unknown exception";
  }
  std::fprintf(stderr, "psd-trainer: aborted while computing: %s\n", what.substr(0, what.find('\n')).c_str());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

int main(int argc, char** argv) {
  psd::endBySignals();
  std::set_terminate(endByLine);
  const psd::SignalThread signals;
  return psd::runProgram(argc, argv);
}

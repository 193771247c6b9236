#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "common/os/end_by_signal.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/signal_thread.h"

namespace {

/// What was thrown where nobody can catch it, as by a check of compiled code on a thread of LibTorch's, ends
/// the program by a line.
[[noreturn]] void endByLine() {
  std::string what = "nothing was thrown";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {
    what = "something was thrown that nobody knows";
  }
  std::fprintf(stderr, "psd-trainer: ended in the midst of computing: %s\n",
               what.substr(0, what.find('\n')).c_str());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

int main(int argc, char** argv) {
  psd::endBySignals();
  std::set_terminate(endByLine);
  const psd::SignalThread signals;
  return psd::runProgram(argc, argv);
}

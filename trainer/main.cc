#include "trainer/cli/commands.h"
#include "trainer/cli/signal_thread.h"

int main(int argc, char** argv) {
  const psd::SignalThread signals;
  return psd::runProgram(argc, argv);
}

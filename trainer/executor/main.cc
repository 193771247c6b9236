#include "common/os/end_by_signal.h"
#include "trainer/executor/program.h"

int main(int argc, char** argv) {
  psd::endBySignals();
  return psd::runExecutor(argc, argv);
}

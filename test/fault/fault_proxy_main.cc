// FaultProxy as a program: prints its address, and runs until it is killed.
//
//   fault_proxy UPSTREAM SEED MESSAGES_MOST

#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "test/fault/fault_proxy.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: fault_proxy UPSTREAM SEED MESSAGES_MOST\n");
    return 2;
  }
  const psd::testing::FaultProxy proxy(argv[1], std::strtoull(argv[2], nullptr, 10),
                                       std::strtoull(argv[3], nullptr, 10));
  std::printf("%s\n", proxy.address().c_str());
  std::fflush(stdout);
  for (;;) pause();
}

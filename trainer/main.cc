#include "trainer/cli/commands.h"

int main(int argc, char** argv) { return psd::runProgram(argc, argv); }

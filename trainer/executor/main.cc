#include "trainer/executor/program.h"

int main(int argc, char** argv) { return psd::runExecutor(argc, argv); }

#include "trainer/bench/bench.h"
#include "trainer/cli/commands.h"

namespace psd {

Status runBenchCommand(const BenchCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const BenchReport report, runBench(command.options, connect));
  out << (command.json ? formatJson(report) : formatText(report)) << std::endl;
  return {};
}

}  // namespace psd

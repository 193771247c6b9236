#include "trainer/bench/bench.h"
#include "trainer/bench/train_bench.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/setup.h"
#include "trainer/loop/batches.h"

namespace psd {

Status runBenchCommand(const BenchCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const BenchReport report, runBench(command.options, connect));
  out << (command.json ? formatJson(report) : formatText(report)) << std::endl;
  return {};
}

Status runTrainBenchCommand(const TrainBenchCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const auto data, openData(command.common, Split::train));
  PSD_ASSIGN_OR_RETURN(const auto withServer, buildModel(command.common));
  PSD_ASSIGN_OR_RETURN(const auto alone, buildModel(command.common));
  PSD_RETURN_IF_ERROR(checkFit(*withServer, *data));
  PSD_ASSIGN_OR_RETURN(const auto client, connect(command.common.client));
  PSD_ASSIGN_OR_RETURN(const TrainBenchReport report,
                       runTrainBench(*client, *withServer, *alone, *data, command.loop, command.seconds));
  out << (command.json ? formatJson(report) : formatText(report)) << std::endl;
  return {};
}

}  // namespace psd

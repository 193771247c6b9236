#include <limits>
#include <string>

#include "trainer/bench/bench.h"
#include "trainer/bench/train_bench.h"
#include "trainer/cli/commands.h"
#include "trainer/cli/setup.h"
#include "trainer/loop/fit.h"
#include "trainer/model/device.h"

namespace psd {

namespace {

/// The CUDA device index. Does not call CUDA: a process that has initialized CUDA must not fork.
Result<int> transferDevice(const std::string& request) {
  const auto device = selectDevice(request, 0, std::numeric_limits<int>::max());
  if (device.ok() && request != "auto") return device->cuda;
  return Error{ErrorCode::invalidArgument,
               "--device: '" + request + "' is not a device of a transfer; expected cpu or cuda:N"};
}

}  // namespace

Status runBenchCommand(const BenchCommand& command, const Connect& connect, std::ostream& out) {
  BenchOptions options = command.options;
  PSD_ASSIGN_OR_RETURN(options.client.cudaDevice, transferDevice(command.device));
  PSD_ASSIGN_OR_RETURN(const BenchReport report, runBench(options, connect));
  out << (command.json ? formatJson(report) : formatText(report)) << std::endl;
  return {};
}

Status runRowsBenchCommand(const RowsBenchCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const RowsBenchReport report, runRowsBench(command.options, connect));
  out << (command.json ? formatJson(report) : formatText(report)) << std::endl;
  return {};
}

Status runTrainBenchCommand(const TrainBenchCommand& command, const Connect& connect, std::ostream& out) {
  PSD_ASSIGN_OR_RETURN(const auto data, openData(command.common, Split::train));
  PSD_ASSIGN_OR_RETURN(const auto withServer, buildModel(command.common));
  PSD_ASSIGN_OR_RETURN(const auto alone, buildModel(command.common));
  PSD_RETURN_IF_ERROR(checkFit(*withServer, *data));
  ClientOptions options = command.common.client;
  options.cudaDevice = withServer->cudaDevice();
  PSD_ASSIGN_OR_RETURN(const auto client, connect(options));
  PSD_ASSIGN_OR_RETURN(const TrainBenchReport report,
                       runTrainBench(*client, *withServer, *alone, *data, command.loop, command.seconds));
  out << (command.json ? formatJson(report) : formatText(report)) << std::endl;
  return {};
}

}  // namespace psd

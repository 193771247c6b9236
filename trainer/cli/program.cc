#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <thread>

#include <spdlog/spdlog.h>
#include <unistd.h>

#include "common/cli/output.h"
#include "common/log/log.h"
#include "common/os/freed_memory.h"
#include "common/text/text.h"
#include "trainer/cli/command_line.h"
#include "trainer/cli/commands.h"

namespace psd {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

int report(const Error& error) {
  printLastLine("psd-trainer: " + oneLine(error.message, kMessageBytesMax));
  return error.code == ErrorCode::invalidArgument ? kExitUsage : kExitFailed;
}

/// Exit status of a command that ends with 0 or a signal.
int exitStatus(const Result<int>& signal) {
  if (!signal.ok()) return report(signal.error());
  return *signal == 0 ? 0 : 128 + *signal;
}

int train(const TrainCommand& command) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  return exitStatus(runTrain(command, Client::connect, std::cout, terminal));
}

int eval(const EvalCommand& command) { return exitStatus(runEval(command, Client::connect, std::cout)); }

int simulate(const SimulateCommand& command) {
  return exitStatus(runSimulate(command, Client::connect, std::cout));
}

int bridge(const BridgeCommand& command) {
  const Status done = runBridge(command, Client::connect);
  return done.ok() ? 0 : report(done.error());
}

int bench(const BenchCommand& command) {
  const Status done = runBenchCommand(command, Client::connect, std::cout);
  return done.ok() ? 0 : report(done.error());
}

int trainBench(const TrainBenchCommand& command) {
  const Status done = runTrainBenchCommand(command, Client::connect, std::cout);
  return done.ok() ? 0 : report(done.error());
}

int rowsBench(const RowsBenchCommand& command) {
  const Status done = runRowsBenchCommand(command, Client::connect, std::cout);
  return done.ok() ? 0 : report(done.error());
}

int run(const Command& command) {
  if (const auto* print = std::get_if<PrintText>(&command)) {
    std::cout << print->text;
    return 0;
  }
  const auto* training = std::get_if<TrainCommand>(&command);
  const auto* evaluation = std::get_if<EvalCommand>(&command);
  const auto* simulation = std::get_if<SimulateCommand>(&command);
  const auto* bridging = std::get_if<BridgeCommand>(&command);
  const auto* measurement = std::get_if<BenchCommand>(&command);
  const auto* stepMeasurement = std::get_if<TrainBenchCommand>(&command);
  const auto* rowMeasurement = std::get_if<RowsBenchCommand>(&command);
  const std::string& logLevel = training          ? training->common.logLevel
                                : evaluation      ? evaluation->common.logLevel
                                : simulation      ? simulation->common.logLevel
                                : bridging        ? bridging->logLevel
                                : stepMeasurement ? stepMeasurement->common.logLevel
                                : rowMeasurement  ? rowMeasurement->logLevel
                                                  : measurement->logLevel;
  const Status logging = initLogging({.level = logLevel});
  if (!logging.ok()) return report(logging.error());
  const ClientOptions& client = training          ? training->common.client
                                : evaluation      ? evaluation->common.client
                                : simulation      ? simulation->common.client
                                : bridging        ? bridging->options.root
                                : stepMeasurement ? stepMeasurement->common.client
                                : rowMeasurement  ? rowMeasurement->options.client
                                                  : measurement->options.client;
  if (const std::string warning = tokenInTheClear(client.token, client.servers); !warning.empty()) {
    spdlog::warn("{}", warning);
  }
  if (training) return train(*training);
  if (simulation) return simulate(*simulation);
  if (bridging) return bridge(*bridging);
  if (stepMeasurement) return trainBench(*stepMeasurement);
  if (rowMeasurement) return rowsBench(*rowMeasurement);
  return evaluation ? eval(*evaluation) : bench(*measurement);
}

}  // namespace

int runProgram(int argc, const char* const* argv) {
  keepFreedMemory();
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  const auto command = parseCommandLine(
      std::span(argv, static_cast<size_t>(argc)), [](const char* name) { return std::getenv(name); }, cores);
  if (!command.ok()) return report(command.error());
  const int status = run(*command);
  if (status != 0) return status;
  const Status written = finishOutput();  // std::cout itself is unbuffered
  if (written.ok()) return 0;
  if (!std::holds_alternative<TrainCommand>(*command)) return report(written.error());
  printLastLine("psd-trainer: warning: " + written.message());  // the training itself succeeded
  return 0;
}

}  // namespace psd

#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "common/status/status.h"
#include "trainer/bench/bench.h"
#include "trainer/bench/rows_bench.h"
#include "trainer/bridge/bridge.h"
#include "trainer/cli/environment.h"
#include "trainer/client/client.h"
#include "trainer/loop/training_loop.h"
#include "trainer/simulate/simulation.h"

namespace psd {

/// What train and eval have in common.
struct CommonOptions {
  ClientOptions client;
  Placement placement;
  std::string model;
  std::string data;
  std::string device;  ///< auto, cpu or cuda:N; not checked yet
  uint32_t threads = 1;
  uint64_t seed = 1;
  std::string logLevel;
};

struct TrainCommand {
  CommonOptions common;
  LoopOptions loop;
  std::string allReduceHost;      ///< where other trainers reach this one; empty: on this machine
  std::string execute;            ///< address of the executor that computes; empty: the model is here
  uint32_t microBatches = 1;      ///< of `execute`
  std::string initFile;           ///< values that the model begins with; empty: the seeded ones
  std::string metricsFile;        ///< empty: none
  std::string tensorboardFolder;  ///< of all ranks; empty: none
};

struct EvalCommand {
  CommonOptions common;
  bool json = false;
  std::chrono::milliseconds every{0};  ///< between two scores; 0: there is one
  std::string metricsFile;             ///< empty: none
};

struct BenchCommand {
  BenchOptions options;
  std::string device = "cpu";  ///< or cuda:N, of the values at this end; not checked yet
  std::string logLevel;
  bool json = false;
};

/// Virtual trainers in this process.
struct SimulateCommand {
  CommonOptions common;
  SimulationOptions options;
  std::string schedule;  ///< as Schedule reads it
  bool json = false;
};

/// The bridge of this machine's daemon to one that averages.
struct BridgeCommand {
  BridgeOptions options;
  std::string logLevel;
};

/// bench train: a training step with and without the daemon.
struct TrainBenchCommand {
  CommonOptions common;
  LoopOptions loop;
  double seconds = 0;
  bool json = false;
};

/// Something to print was asked for: help, the version, a manual page or completion.
struct PrintText {
  std::string text;
};

/// bench rows: rows of embedding tables.
struct RowsBenchCommand {
  RowsBenchOptions options;
  bool json = false;
  std::string logLevel = "info";
};

using Command = std::variant<TrainCommand, EvalCommand, SimulateCommand, BridgeCommand, BenchCommand,
                             TrainBenchCommand, RowsBenchCommand, PrintText>;

/// Reads the command line and, where a flag is not given, the environment. Every error is one line that
/// names the flag or variable. Pure but for the number of CPU cores, which `cores` gives.
Result<Command> parseCommandLine(std::span<const char* const> arguments, const EnvironmentGetter& environment,
                                 uint32_t cores);

}  // namespace psd

#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <variant>

#include "trainer/bench/bench.h"
#include "trainer/bench/rows_bench.h"
#include "trainer/bridge/bridge.h"
#include "trainer/cli/environment.h"
#include "trainer/client/api/client.h"
#include "trainer/lab/simulation.h"
#include "trainer/loop/training_loop.h"

// What the commands of psd-trainer are to do. Value types.

namespace psd {

/// Options that train and eval share.
struct CommonOptions {
  ClientOptions client;
  Placement placement;
  std::string model;
  std::string data;
  uint64_t badLines = 0;      ///< malformed lines of the data that are skipped
  std::string device;         ///< auto, cpu or cuda:N; not validated
  std::string dtype = "f32";  ///< not validated
  uint32_t threads = 1;
  uint64_t seed = 1;
  std::string logLevel;
};

struct TrainCommand {
  CommonOptions common;
  LoopOptions loop;
  std::string allReduceHost;      ///< host at which others reach this trainer; empty: same machine
  std::string execute;            ///< address of the executor that computes; empty: none
  uint32_t microBatches = 1;      ///< used with `execute`
  std::string initFile;           ///< initial values; empty: drawn with the seed
  std::string metricsFile;        ///< empty: none
  std::string tensorboardFolder;  ///< parent folder of all ranks; empty: none
};

struct EvalCommand {
  CommonOptions common;
  bool json = false;
  std::chrono::milliseconds every{0};  ///< interval of scores; 0: a single score
  std::string metricsFile;             ///< empty: none
};

struct BenchCommand {
  BenchOptions options;
  std::string device = "cpu";  ///< or cuda:N: memory of the values in this process; not validated
  std::string logLevel;
  bool json = false;
};

/// Virtual trainers in this process.
struct SimulateCommand {
  CommonOptions common;
  SimulationOptions options;
  std::string schedule;  ///< as StepTimes::parse() reads it
  bool json = false;
};

/// Bridges this machine's daemon to one that averages.
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

/// Text to print: help, the version, a manual page or a completion script.
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

}  // namespace psd

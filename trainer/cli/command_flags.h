#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/cli/credential_flags.h"
#include "common/status/status.h"

namespace psd {

inline constexpr std::string_view kTrainOperation = "train", kRowsOperation = "rows";  // of bench

/// The flags as written. Numbers stay text, so that flags and environment variables are checked alike.
struct RawFlags {
  std::vector<std::string> servers;
  std::optional<std::string> rank, worldSize, epochs, steps, init, metrics, tensorboard, execute,
      microBatches, allReduceHost;
  std::string model = "mnist_cnn", data, device = "auto", logLevel = "info";
  std::string batchSize = "32", seed = "1", connectTimeout = "30", retryTimeout = "60", transport = "auto",
              inflight = "0", connections = "1", spin = "0", codec, pullCodec, dataPlan = "static";
  std::optional<std::string> threads, every, local, localTokenFile, state;
  bool json = false, prefetch = false, goOnWithoutRows = false;
  std::string operation, size = "64M", trainers = "1", outstanding = "1", seconds = "2", chunk = "auto",
                         window = "auto", ids = "100000", dim = "32", tables = "1", tableRows = "1000000",
                         skew = "0", creators = "0";
  bool create = false;
  std::string virtualTrainers = "4", schedule = "round_robin", byzantine = "0", byzantineDeviation = "20";
  std::optional<std::string> time, scoreEvery;
  CredentialFlags credentials;
};

/// What they take, for people.
std::string dataHelp();
std::string operationHelp();
std::string parameterCodecHelp();

/// The add…Flags() functions tell CLI11 of flags and of where their texts go; `flags` outlives the app.
void addCommonFlags(CLI::App& app, RawFlags& flags);      // of the commands that compute
void addServerFlags(CLI::App& app, RawFlags& flags);      // of bridge; in the next one too
void addConnectionFlags(CLI::App& app, RawFlags& flags);  // of bench; in addCommonFlags() too
void addTrainFlags(CLI::App& app, RawFlags& flags);
void addSimulateFlags(CLI::App& app, RawFlags& flags);
void addBridgeFlags(CLI::App& app, RawFlags& flags);
void addEvalFlags(CLI::App& app, RawFlags& flags);
void addBenchFlags(CLI::App& app, RawFlags& flags);

/// Refuses what was given to train and has no use with --execute.
Status checkExecuteFlags(const CLI::App& app);
/// Refuses what was given to bench and `operation` has no use for.
Status checkBenchFlags(const CLI::App& app, std::string_view operation);

}  // namespace psd

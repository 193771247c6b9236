#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/cli/credential_flags.h"
#include "common/status/status.h"

namespace psd {

inline constexpr std::array<std::string_view, 6> kLogLevels = {"trace", "debug", "info",
                                                               "warn",  "error", "off"};
inline constexpr std::string_view kTrainOperation = "train", kRowsOperation = "rows";  // operations of bench

/// The flags as written. Numbers are kept as text, so that flags and environment variables share one check.
struct RawFlags {
  std::vector<std::string> servers;
  std::optional<std::string> rank, worldSize, epochs, steps, init, metrics, tensorboard, execute,
      microBatches, allReduceHost;
  std::string model = "mnist_cnn", data, device = "auto", dtype = "f32", logLevel = "info";
  std::string batchSize = "32", seed = "1", badLines = "0", connectTimeout = "30", retryTimeout = "60",
              transport = "auto", inflight = "0", connections = "1", spin = "0", codec, pullCodec,
              dataPlan = "static";
  std::optional<std::string> threads, every, local, localTokenFile, state;
  bool json = false, prefetch = false, acceptLostRows = false;
  std::string operation, size = "64M", trainers = "1", outstanding = "1", seconds = "2", chunk = "auto",
                         window = "auto", ids = "100000", dim = "32", tables = "1", tableRows = "1000000",
                         skew = "0", creators = "0";
  bool create = false;
  std::string virtualTrainers = "4", schedule = "round_robin", byzantine = "0", byzantineDeviation = "20";
  std::optional<std::string> time, scoreEvery;
  CredentialFlags credentials;
};

/// Human-readable lists of accepted values.
std::string dataHelp();
std::string operationHelp();
std::string parameterCodecHelp();

/// The add…Flags() functions register flags with CLI11, which writes their texts to `flags`; `flags` outlives
/// the app. Help shows them in this order.
void addCommonFlags(CLI::App& app, RawFlags& flags);      // for the commands that compute
void addServerFlags(CLI::App& app, RawFlags& flags);      // for bridge; included in the next one
void addConnectionFlags(CLI::App& app, RawFlags& flags);  // for bench; included in addCommonFlags()
void addMachineFlags(CLI::App& app, RawFlags& flags);     // for the commands that compute, at the end
void addTransportFlags(CLI::App& app, RawFlags& flags);   // for every command; included in addMachineFlags()
void addTrainFlags(CLI::App& app, RawFlags& flags);
void addSimulateFlags(CLI::App& app, RawFlags& flags);
void addBridgeFlags(CLI::App& app, RawFlags& flags);
void addEvalFlags(CLI::App& app, RawFlags& flags);
void addBenchFlags(CLI::App& app, RawFlags& flags);

/// Rejects flags of train that cannot be used with --execute.
Status checkExecuteFlags(const CLI::App& app);
/// Rejects flags of bench that `operation` does not support.
Status checkBenchFlags(const CLI::App& app, std::string_view operation);

}  // namespace psd

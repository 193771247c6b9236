#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/os/address.h"
#include "common/status/status.h"
#include "common/tls/tls_context.h"

namespace psd {

/// What a context computes over.
enum class WeightsMode {
  stashed,  ///< the parameters as its forward pass saw them
  live,     ///< the daemon's own memory, while others update it
};

/// Where an executor tells of itself over HTTP. A value type.
struct ExecutorHttpConfig {
  std::vector<Address> listen;  ///< as that of trainers; empty: off
  uint32_t connections = 64;    ///< open at once
  std::chrono::milliseconds timeout{15'000};
};

/// A stage after the first. A value type.
struct StageConfig {
  std::string layer;   ///< with which it begins
  std::string device;  ///< as that of ExecutorConfig
};

/// How an executor runs; docs/executor.md tells of every key. A value type.
struct ExecutorConfig {
  std::vector<std::string> servers;   ///< of the daemon; of several the first that answers
  std::vector<Address> listen;        ///< of this machine alone, but for those with TLS
  std::optional<TlsServerFiles> tls;  ///< of tls:// addresses; clients show a certificate there
  ExecutorHttpConfig http;
  std::string module;    ///< as chooseModel() reads it
  uint64_t seed = 1;     ///< of initial values, where the daemon has none, and of dropout
  uint32_t workers = 2;  ///< passes computed at once
  uint32_t threadsPerWorker = 1;
  std::string device = "auto";      ///< "auto", "cpu" or "cuda:N": of the module, or of its first stage
  std::vector<StageConfig> stages;  ///< those after the first; empty: not cut
  uint32_t microBatches = 4;        ///< of a batch, on their way through the stages
  WeightsMode weights = WeightsMode::stashed;
  bool exclusive = false;              ///< a training step excludes all others, from its forward pass on
  std::chrono::milliseconds age{100};  ///< of waiting that raises a call's priority by one
  std::chrono::milliseconds connectTimeout{5'000};  ///< of the daemon

  // What peers may make it hold:
  uint32_t queue = 256;    ///< calls that wait or are computed
  uint32_t contexts = 64;  ///< of each trainer
  uint32_t trainers = 64;
  uint32_t connections = 256;
  uint64_t messageBytes = 64u << 20;
  uint64_t memoryBytes = 4ull << 30;          ///< inputs, outputs, stashed parameters and gradients, together
  std::chrono::milliseconds context{60'000};  ///< that a context lasts without a call
  std::chrono::milliseconds silence{10'000};  ///< over which nothing may come from a peer
};

/// The error has the JSON path. `json` becomes the complete configuration.
Result<ExecutorConfig> readExecutorConfig(nlohmann::ordered_json& json);

}  // namespace psd

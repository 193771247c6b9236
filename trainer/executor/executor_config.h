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
  stashed,  ///< the parameters as its forward pass read them
  live,     ///< the daemon's own memory, while other trainers update it
};

/// Where an executor serves metrics and status over HTTP. A value type.
struct ExecutorHttpConfig {
  std::vector<Address> listen;  ///< same rules as ExecutorConfig::listen; empty: off
  uint32_t connections = 64;    ///< most that are open at once
  std::chrono::milliseconds timeout{15'000};
};

/// A stage after the first. A value type.
struct StageConfig {
  std::string layer;   ///< its first layer
  std::string device;  ///< as ExecutorConfig::device
};

/// The configuration of an executor; docs/guides/executor.md documents every key. A value type.
struct ExecutorConfig {
  std::vector<std::string> servers;   ///< addresses of the daemon; the first that answers is used
  std::vector<Address> listen;        ///< local addresses only, except those with TLS
  std::optional<TlsServerFiles> tls;  ///< for tls:// addresses, where clients must show a certificate
  ExecutorHttpConfig http;
  std::string module;    ///< see chooseModel()
  uint64_t seed = 1;     ///< of initial values, if the daemon has none, and of dropout
  uint32_t workers = 2;  ///< passes computed at once
  uint32_t threadsPerWorker = 1;
  std::string device = "auto";      ///< of the module, or of its first stage: "auto", "cpu" or "cuda:N"
  std::vector<StageConfig> stages;  ///< stages after the first; empty: the module is one stage
  uint32_t microBatches = 4;        ///< into which the stages divide a batch
  WeightsMode weights = WeightsMode::stashed;
  bool exclusive = false;              ///< one training step at a time, from its forward pass to its step
  std::chrono::milliseconds age{100};  ///< waiting time that raises a call's priority by one
  std::chrono::milliseconds connectTimeout{5'000};  ///< for connecting to the daemon

  // Limits on what peers can make it hold:
  uint32_t queue = 256;    ///< calls that are queued or in progress
  uint32_t contexts = 64;  ///< of each trainer
  uint32_t trainers = 64;
  uint32_t connections = 256;
  uint64_t messageBytes = 64u << 20;
  uint64_t memoryBytes = 4ull << 30;          ///< inputs, outputs, stashed parameters and gradients, together
  std::chrono::milliseconds context{60'000};  ///< idle time after which a context ends
  std::chrono::milliseconds silence{10'000};  ///< idle timeout of a peer's connection
};

/// An error names the JSON path. `json` becomes the complete configuration, defaults included.
Result<ExecutorConfig> readExecutorConfig(nlohmann::ordered_json& json);

}  // namespace psd

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "trainer/client/api/client.h"

namespace psd {

/// The measured operation.
enum class BenchOperation {
  pull,      ///< pull of all parameters
  push,      ///< push of a gradient of all parameters, until it is applied
  pushpull,  ///< push, then pull, as in a training step
  latency,   ///< empty calls
};

struct BenchOperationName {
  std::string_view name;
  BenchOperation operation;
  std::string_view summary;
};

inline constexpr BenchOperationName kBenchOperations[] = {
    {"pull", BenchOperation::pull, "all parameters"},
    {"push", BenchOperation::push, "a gradient, applied by the optimizer"},
    {"pushpull", BenchOperation::pushpull, "a push, then a pull, as in a training step"},
    {"latency", BenchOperation::latency, "empty calls"},
};

/// Every operation, in the order of the help.
inline std::span<const BenchOperationName> benchOperations() { return kBenchOperations; }

struct BenchOptions {
  BenchOperation operation = BenchOperation::pull;
  ClientOptions client;
  uint64_t bytes = 64u << 20;  ///< of the parameters, f32; rounded up to the layout's grain
  uint32_t trainers = 1;       ///< concurrent trainers, each a process with its own connections
  uint32_t outstanding = 1;    ///< latency: unanswered calls per trainer
  double seconds = 2;          ///< duration of the measurement, after a warm-up
};

/// Times are seconds; bytes are those of parameters or gradients, both ways for pushpull.
struct BenchReport {
  BenchOperation operation = BenchOperation::pull;
  uint64_t bytes = 0;
  uint32_t trainers = 0;
  uint64_t rounds = 0;        ///< operations of all trainers
  double median = 0;          ///< of one operation
  double p99 = 0;             ///< of one operation
  double elapsed = 0;         ///< the longest measurement of a trainer
  double bytesPerSecond = 0;  ///< of all trainers together; 0 for latency
  double fairness = 1;        ///< rounds of the slowest trainer / rounds of the fastest
  uint32_t connections = 1;   ///< of each trainer, in use
  std::string policy;         ///< this and the next three: empty for latency, which does not join
  std::string device;
  std::string pullTransport;  ///< as in JoinInfo
  std::string pushTransport;
  std::string codec = "none";      ///< of pushes
  std::string pullCodec = "none";  ///< of pulls
  uint64_t wireBytes = 0;          ///< of one operation, on the wire; 0 for latency

  double roundsPerSecond() const { return static_cast<double>(rounds) / elapsed; }
};

/// Measures a running daemon, which must hold no other model: the trainers initialize it with one tensor of
/// zeros and push zeros, or, with a codec, random values. Latency does not join and works with any daemon.
/// With ClientOptions::cudaDevice values and gradients are in that device's memory, and it is an error
/// (invalidArgument) if the daemon shares no device memory. Blocks. More than one trainer is forked, which
/// requires a single-threaded process (processes.h). `connect` is Client::connect or a substitute.
Result<BenchReport> runBench(
    const BenchOptions& options,
    const std::function<Result<std::unique_ptr<Client>>(const ClientOptions&)>& connect);

/// Human-readable, aligned lines.
std::string formatText(const BenchReport& report);
/// One JSON object on one line.
std::string formatJson(const BenchReport& report);

}  // namespace psd

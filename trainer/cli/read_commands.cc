#include "trainer/cli/read_commands.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>

#include "common/cli/setting.h"
#include "common/codec/codec.h"
#include "common/os/address.h"
#include "trainer/bench/bench.h"

namespace psd {
namespace {

constexpr double kConnectTimeoutSecondsMax = 86'400;
constexpr double kRetryTimeoutSecondsMax = 30 * 86'400;
constexpr double kEverySecondsMax = 86'400;
constexpr uint64_t kThreadsMax = 4096;
constexpr uint64_t kBatchSizeMax = 1u << 20;
constexpr std::string_view kAutoBatch = "auto";
constexpr uint64_t kEpochsMax = 1'000'000;
constexpr uint64_t kStepsMax = 1ull << 40;
constexpr uint64_t kInflightMax = 64;
constexpr uint64_t kMicroBatchesMax = 1024;  // further limited by the executor's `contexts`
constexpr uint64_t kBenchBytesMax = 1ull << 40;
constexpr uint64_t kBenchTrainersMax = 1024;
constexpr uint64_t kBenchRowsMax = 1ull << 32, kBenchDimMax = 4096, kBenchTablesMax = 4096;
constexpr double kBenchSkewMax = 10;
constexpr uint64_t kVirtualTrainersMax = 256;  // each is a connection and two threads
constexpr double kVirtualTimeMax = 1e12, kByzantineDeviationMax = 1e6;
constexpr double kBenchSecondsMax = 86'400;
constexpr uint64_t kChunkBytesMin = 4096;
constexpr uint64_t kChunkBytesMax = 64u << 20;
constexpr uint64_t kWindowMax = 1024;
constexpr uint64_t kSpinMicrosecondsMax = 10'000;
constexpr uint64_t kConnectionsMax = 64;
constexpr uint64_t kBadLinesMax = 100'000'000;  // of 4 bytes of memory each

constexpr const char* kTrainBenchData = "synthetic";

Result<Transport> parseTransport(std::string_view name) {
  if (name == "auto") return Transport::automatic;
  if (name == "rpc") return Transport::rpc;
  if (name == "shm") return Transport::shm;
  return Error{ErrorCode::invalidArgument,
               "--transport: '" + std::string(name) + "' is not a transport; expected auto, rpc or shm"};
}

/// Parses seconds and rounds up to milliseconds, so that a positive value does not become 0.
Result<std::chrono::milliseconds> readMilliseconds(const Setting& setting, double secondsMax,
                                                   Zero zero = Zero::refused) {
  PSD_ASSIGN_OR_RETURN(const double seconds, parseSeconds(setting, secondsMax, zero));
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
}

/// The flag's codec with all its options; empty if the flag is empty.
Result<std::string> readCodec(const char* flag, const std::string& spec, bool parameters) {
  if (spec.empty()) return std::string();
  const auto codec = makeCodec(spec);
  if (!codec.ok()) return Error{codec.error().code, std::string(flag) + ": " + codec.message()};
  if (parameters && !(*codec)->suitsParameters()) {
    return Error{ErrorCode::invalidArgument, std::string(flag) + ": " + std::string((*codec)->name()) +
                                                 " cannot encode parameters; expected " +
                                                 parameterCodecHelp()};
  }
  return (*codec)->spec();
}

/// Rejects combinations that would fail after joining.
Status checkShared(const ClientOptions& client) {
  if (client.transport != Transport::shm) return {};
  for (const std::string& server : client.servers) {
    if (server.starts_with("unix:")) continue;
    return {ErrorCode::invalidArgument,
            "--transport: memory is shared over Unix sockets only, so shm cannot be used with '" + server +
                "'; expected an address unix:///PATH, or auto or rpc"};
  }
  if (client.codec.empty() || client.codec == "none") return {};
  return {ErrorCode::invalidArgument,
          "--transport: gradients in shared memory are not encoded, so shm cannot "
          "be used with --codec " +
              client.codec + "; expected auto or rpc"};
}

Result<ClientOptions> readConnection(const RawFlags& flags, const EnvironmentGetter& environment) {
  ClientOptions client;
  PSD_ASSIGN_OR_RETURN(client.servers, resolveServers(flags.servers, environment));
  PSD_ASSIGN_OR_RETURN(Credentials credentials, readCredentials(flags.credentials, environment));
  client.token = std::move(credentials.token);
  client.tls = std::move(credentials.tls);
  PSD_ASSIGN_OR_RETURN(client.transport, parseTransport(flags.transport));
  PSD_ASSIGN_OR_RETURN(client.connectTimeout, readMilliseconds({"--connect-timeout", flags.connectTimeout},
                                                               kConnectTimeoutSecondsMax, Zero::allowed));
  PSD_ASSIGN_OR_RETURN(client.codec, readCodec("--codec", flags.codec, false));
  PSD_ASSIGN_OR_RETURN(client.pullCodec, readCodec("--pull-codec", flags.pullCodec, true));
  PSD_RETURN_IF_ERROR(checkShared(client));
  return client;
}

Status readConnections(const RawFlags& flags, ClientOptions& client) {
  PSD_ASSIGN_OR_RETURN(const uint64_t connections,
                       parseInteger({"--connections", flags.connections}, 1, kConnectionsMax));
  client.connections = static_cast<uint32_t>(connections);
  PSD_ASSIGN_OR_RETURN(const uint64_t spin, parseInteger({"--spin", flags.spin}, 0, kSpinMicrosecondsMax));
  client.spin = std::chrono::microseconds(spin);
  return {};
}

/// Reads the options of transfers.
Status readTransfer(const RawFlags& flags, ClientOptions& client) {
  if (flags.chunk != "auto") {
    PSD_ASSIGN_OR_RETURN(client.chunkBytes,
                         parseBytes({"--chunk", flags.chunk}, kChunkBytesMin, kChunkBytesMax));
    client.deviceChunkBytes = client.ringChunkBytes = client.chunkBytes;
  }
  if (flags.window != "auto") {
    PSD_ASSIGN_OR_RETURN(const uint64_t window, parseInteger({"--window", flags.window}, 1, kWindowMax));
    client.window = static_cast<uint32_t>(window);
  }
  return readConnections(flags, client);
}

Status checkLogLevel(const std::string& level) {
  if (std::count(kLogLevels.begin(), kLogLevels.end(), level) > 0) return {};
  return {ErrorCode::invalidArgument,
          "--log-level: '" + level + "' is not a level; expected trace, debug, info, warn, error or off"};
}

Result<CommonOptions> readCommon(const RawFlags& flags, const EnvironmentGetter& environment,
                                 uint32_t cores) {
  CommonOptions common;
  PSD_ASSIGN_OR_RETURN(common.client, readConnection(flags, environment));
  PSD_ASSIGN_OR_RETURN(common.placement, resolvePlacement(flags.rank, flags.worldSize, environment));
  common.threads = std::max(1u, cores / common.placement.localWorldSize);
  if (flags.threads) {
    PSD_ASSIGN_OR_RETURN(const uint64_t threads, parseInteger({"--threads", *flags.threads}, 1, kThreadsMax));
    common.threads = static_cast<uint32_t>(threads);
  }
  PSD_ASSIGN_OR_RETURN(common.seed, parseInteger({"--seed", flags.seed}, 0, UINT64_MAX));
  if (flags.data.empty()) {
    return Error{ErrorCode::invalidArgument, "--data is missing; expected " + dataHelp()};
  }
  common.model = flags.model;
  common.data = flags.data;
  PSD_ASSIGN_OR_RETURN(common.badLines, parseInteger({"--bad-lines", flags.badLines}, 0, kBadLinesMax));
  common.device = flags.device;
  common.dtype = flags.dtype;
  common.logLevel = flags.logLevel;
  PSD_RETURN_IF_ERROR(checkLogLevel(flags.logLevel));
  return common;
}

/// Empty if the flag is not given. An empty name, such as an unset variable of a script, is an error.
Result<std::string> readFileName(const char* flag, const std::optional<std::string>& name) {
  if (!name) return std::string();
  if (name->empty()) return Error{ErrorCode::invalidArgument, std::string(flag) + ": the file has no name"};
  return *name;
}

Status readOverlap(const RawFlags& flags, LoopOptions& loop) {
  PSD_ASSIGN_OR_RETURN(const uint64_t inflight,
                       parseInteger({"--inflight", flags.inflight}, 0, kInflightMax));
  loop.inflight = static_cast<uint32_t>(inflight);
  loop.prefetch = flags.prefetch;
  return {};
}

/// A number, "auto" or "auto:N".
Status readBatchSize(const RawFlags& flags, LoopOptions& loop) {
  Setting size{"--batch-size", flags.batchSize};
  loop.autoBatch = size.text.starts_with(kAutoBatch);
  if (loop.autoBatch) {
    if (!loop.assignedSamples) {
      return {ErrorCode::invalidArgument,
              "--batch-size auto needs --data-plan dynamic; only then the daemon can choose batch sizes"};
    }
    if (size.text == kAutoBatch) return {};
    if (size.text[kAutoBatch.size()] == ':') {
      size = {"--batch-size auto", size.text.substr(kAutoBatch.size() + 1)};
    }
  }
  PSD_ASSIGN_OR_RETURN(const uint64_t samples, parseInteger(size, 1, kBatchSizeMax));
  loop.batchSize = static_cast<uint32_t>(samples);
  return {};
}

/// The environment without ranks: all commands but train run as single processes, even under torchrun or
/// SLURM.
EnvironmentGetter withoutRank(const EnvironmentGetter& environment) {
  return [&environment](const char* name) -> const char* {
    const std::string_view text(name);
    return text.starts_with("PSD_") || text == "MASTER_ADDR" ? environment(name) : nullptr;
  };
}

/// Connection options of this machine's daemon; `root` is the remote one.
Result<ClientOptions> readLocal(const RawFlags& flags, const EnvironmentGetter& environment,
                                const ClientOptions& root) {
  if (!flags.local || flags.local->empty()) {
    return Error{
        ErrorCode::invalidArgument,
        "--local is missing; expected the address of this machine's daemon, like unix:///run/psd/psd.sock"};
  }
  ClientOptions local = root;
  const auto servers = resolveServers({*flags.local}, environment, "--local");
  if (!servers.ok()) return servers.error();
  local.servers = *servers;
  for (const std::string& server : root.servers) {
    if (std::count(servers->begin(), servers->end(), server) == 0) continue;
    return Error{ErrorCode::invalidArgument,
                 "--local: '" + server + "' is also --server; a bridge connects two daemons"};
  }
  local.token.clear();
  if (flags.localTokenFile) {
    CredentialFlags credentials = flags.credentials;
    credentials.tokenFile = *flags.localTokenFile;
    credentials.tokenFileFlag = "--local-token-file";
    PSD_ASSIGN_OR_RETURN(const Credentials read, readCredentials(credentials, environment));
    local.token = read.token;
  }
  PSD_ASSIGN_OR_RETURN(local.transport, parseTransport(flags.transport));
  PSD_RETURN_IF_ERROR(checkShared(local));
  return local;
}

Result<Command> readTrainBench(RawFlags flags, const EnvironmentGetter& environment, uint32_t cores) {
  TrainBenchCommand bench;
  flags.data = kTrainBenchData;
  PSD_ASSIGN_OR_RETURN(bench.common, readCommon(flags, withoutRank(environment), cores));
  PSD_ASSIGN_OR_RETURN(const uint64_t batchSize,
                       parseInteger({"--batch-size", flags.batchSize}, 1, kBatchSizeMax));
  bench.loop.batchSize = static_cast<uint32_t>(batchSize);
  bench.loop.seed = bench.common.seed;
  PSD_RETURN_IF_ERROR(readOverlap(flags, bench.loop));
  PSD_ASSIGN_OR_RETURN(bench.seconds, parseSeconds({"--seconds", flags.seconds}, kBenchSecondsMax));
  bench.json = flags.json;
  PSD_RETURN_IF_ERROR(readTransfer(flags, bench.common.client));
  return Command(std::move(bench));
}

Result<Command> readRowsBench(const RawFlags& flags, const EnvironmentGetter& environment) {
  RowsBenchCommand bench;
  RowsBenchOptions& options = bench.options;
  PSD_ASSIGN_OR_RETURN(options.client, readConnection(flags, environment));
  PSD_RETURN_IF_ERROR(checkLogLevel(flags.logLevel));
  PSD_RETURN_IF_ERROR(readTransfer(flags, options.client));
  PSD_ASSIGN_OR_RETURN(options.ids, parseInteger({"--ids", flags.ids}, 1, kBenchRowsMax));
  PSD_ASSIGN_OR_RETURN(options.rows, parseInteger({"--table-rows", flags.tableRows}, 1, kBenchRowsMax));
  PSD_ASSIGN_OR_RETURN(const uint64_t dim, parseInteger({"--dim", flags.dim}, 1, kBenchDimMax));
  PSD_ASSIGN_OR_RETURN(const uint64_t tables, parseInteger({"--tables", flags.tables}, 1, kBenchTablesMax));
  PSD_ASSIGN_OR_RETURN(const uint64_t creators,
                       parseInteger({"--creators", flags.creators}, 0, kBenchTrainersMax));
  PSD_ASSIGN_OR_RETURN(options.skew, parseNumber({"--skew", flags.skew}, 0, kBenchSkewMax));
  options.dim = static_cast<uint32_t>(dim);
  options.tables = static_cast<uint32_t>(tables);
  options.creators = static_cast<uint32_t>(creators);
  options.create = flags.create;
  PSD_ASSIGN_OR_RETURN(options.seconds, parseSeconds({"--seconds", flags.seconds}, kBenchSecondsMax));
  bench.json = flags.json;
  bench.logLevel = flags.logLevel;
  return Command(std::move(bench));
}

}  // namespace

Result<Command> readTrain(const RawFlags& flags, const EnvironmentGetter& environment, uint32_t cores) {
  TrainCommand train;
  PSD_ASSIGN_OR_RETURN(train.common, readCommon(flags, environment, cores));
  LoopOptions& loop = train.loop;
  const Placement& placement = train.common.placement;
  loop.membership = {placement.rank, placement.worldSize, placement.anyRank};
  loop.seed = train.common.seed;
  PSD_ASSIGN_OR_RETURN(
      train.common.client.retryTimeout,
      readMilliseconds({"--retry-timeout", flags.retryTimeout}, kRetryTimeoutSecondsMax, Zero::allowed));
  PSD_RETURN_IF_ERROR(readOverlap(flags, loop));
  PSD_RETURN_IF_ERROR(readTransfer(flags, train.common.client));
  train.common.client.acceptLostRows = flags.acceptLostRows;
  if (flags.epochs) {
    PSD_ASSIGN_OR_RETURN(loop.epochs, parseInteger({"--epochs", *flags.epochs}, 1, kEpochsMax));
  }
  if (flags.dataPlan != "static" && flags.dataPlan != "dynamic") {
    return Error{ErrorCode::invalidArgument,
                 "--data-plan: '" + flags.dataPlan + "' is not a plan; expected static or dynamic"};
  }
  loop.assignedSamples = flags.dataPlan == "dynamic";
  PSD_RETURN_IF_ERROR(readBatchSize(flags, loop));
  if (flags.steps) {
    if (loop.assignedSamples) {
      return Error{ErrorCode::invalidArgument,
                   "--steps and --data-plan dynamic exclude each other; the daemon assigns whole epochs"};
    }
    if (flags.epochs) {
      return Error{ErrorCode::invalidArgument, "--steps and --epochs exclude each other; give one"};
    }
    PSD_ASSIGN_OR_RETURN(loop.steps, parseInteger({"--steps", *flags.steps}, 1, kStepsMax));
  }
  if (flags.allReduceHost) {
    if (flags.allReduceHost->empty() || flags.allReduceHost->size() > kAveragingHostBytesMax) {
      return Error{ErrorCode::invalidArgument,
                   "--allreduce-host: expected a host name or an address of this machine, of at most " +
                       std::to_string(kAveragingHostBytesMax) + " bytes"};
    }
    train.allReduceHost = *flags.allReduceHost;
  }
  if (flags.execute) {
    if (flags.execute->find(',') != std::string::npos) {
      return Error{ErrorCode::invalidArgument, "--execute: takes one address, not a list"};
    }
    const auto address = parseAddress(*flags.execute);
    if (!address.ok()) return Error{address.error().code, "--execute: " + address.message()};
    train.execute = *flags.execute;
  }
  if (flags.microBatches) {
    if (!flags.execute) return Error{ErrorCode::invalidArgument, "--micro-batches: requires --execute"};
    PSD_ASSIGN_OR_RETURN(const uint64_t parts,
                         parseInteger({"--micro-batches", *flags.microBatches}, 1, kMicroBatchesMax));
    train.microBatches = static_cast<uint32_t>(parts);
  }
  PSD_ASSIGN_OR_RETURN(train.initFile, readFileName("--init", flags.init));
  PSD_ASSIGN_OR_RETURN(train.metricsFile, readFileName("--metrics", flags.metrics));
  PSD_ASSIGN_OR_RETURN(train.tensorboardFolder, readFileName("--tensorboard", flags.tensorboard));
  return Command(std::move(train));
}

Result<Command> readEval(const RawFlags& flags, const EnvironmentGetter& environment, uint32_t cores) {
  EvalCommand eval;
  PSD_ASSIGN_OR_RETURN(eval.common, readCommon(flags, withoutRank(environment), cores));
  if (flags.every) {
    PSD_ASSIGN_OR_RETURN(eval.every, readMilliseconds({"--every", *flags.every}, kEverySecondsMax));
  }
  PSD_ASSIGN_OR_RETURN(eval.metricsFile, readFileName("--metrics", flags.metrics));
  eval.json = flags.json;
  return Command(std::move(eval));
}

Result<Command> readSimulate(const RawFlags& flags, const EnvironmentGetter& environment, uint32_t cores) {
  SimulateCommand simulate;
  SimulationOptions& options = simulate.options;
  PSD_ASSIGN_OR_RETURN(simulate.common, readCommon(flags, withoutRank(environment), cores));
  if (!flags.threads) simulate.common.threads = 1;  // sums then have the same order on every machine
  options.client = simulate.common.client;
  options.seed = simulate.common.seed;
  PSD_ASSIGN_OR_RETURN(const uint64_t trainers,
                       parseInteger({"--trainers", flags.virtualTrainers}, 1, kVirtualTrainersMax));
  PSD_ASSIGN_OR_RETURN(const uint64_t batchSize,
                       parseInteger({"--batch-size", flags.batchSize}, 1, kBatchSizeMax));
  PSD_ASSIGN_OR_RETURN(const uint64_t byzantine, parseInteger({"--byzantine", flags.byzantine}, 0, trainers));
  PSD_ASSIGN_OR_RETURN(
      options.byzantineDeviation,
      parseNumber({"--byzantine-deviation", flags.byzantineDeviation}, 0, kByzantineDeviationMax));
  options.trainers = static_cast<uint32_t>(trainers);
  options.batchSize = static_cast<uint32_t>(batchSize);
  options.byzantine = static_cast<uint32_t>(byzantine);
  const auto schedule = StepTimes::parse(flags.schedule, options.trainers);
  if (!schedule.ok()) return Error{schedule.error().code, "--schedule: " + schedule.message()};
  simulate.schedule = flags.schedule;
  if (!flags.steps && !flags.time) {
    return Error{ErrorCode::invalidArgument,
                 "--steps is missing; expected the number of steps of all trainers together, or --time"};
  }
  if (flags.steps) {
    PSD_ASSIGN_OR_RETURN(options.steps, parseInteger({"--steps", *flags.steps}, 1, kStepsMax));
  }
  if (flags.time) {
    PSD_ASSIGN_OR_RETURN(options.time, parseNumber({"--time", *flags.time}, 0, kVirtualTimeMax));
  }
  if (flags.scoreEvery) {
    PSD_ASSIGN_OR_RETURN(options.scoreEvery,
                         parseInteger({"--score-every", *flags.scoreEvery}, 1, kStepsMax));
  }
  simulate.json = flags.json;
  return Command(std::move(simulate));
}

Result<Command> readBridge(const RawFlags& flags, const EnvironmentGetter& environment) {
  BridgeCommand bridge;
  BridgeOptions& options = bridge.options;
  const EnvironmentGetter own = withoutRank(environment);
  RawFlags rootFlags = flags;
  rootFlags.transport = "auto";
  PSD_ASSIGN_OR_RETURN(options.root, readConnection(rootFlags, own));
  PSD_RETURN_IF_ERROR(checkLogLevel(flags.logLevel));
  bridge.logLevel = flags.logLevel;
  PSD_ASSIGN_OR_RETURN(options.local, readLocal(flags, own, options.root));
  if (!flags.rank) {
    return Error{ErrorCode::invalidArgument,
                 "--rank is missing; expected the rank of this machine among those that average, from 0"};
  }
  PSD_ASSIGN_OR_RETURN(const uint64_t rank, parseInteger({"--rank", *flags.rank}, 0, kWorldSizeMax - 1));
  options.membership = {Rank{static_cast<uint32_t>(rank)}, 0};
  if (flags.worldSize) {
    PSD_ASSIGN_OR_RETURN(const uint64_t size,
                         parseInteger({"--world-size", *flags.worldSize}, 1, kWorldSizeMax));
    options.membership.worldSize = static_cast<uint32_t>(size);
  }
  if (!flags.state || flags.state->empty()) {
    return Error{ErrorCode::invalidArgument,
                 "--state is missing; expected a folder for the state from which this bridge resumes"};
  }
  options.folder = *flags.state;
  PSD_ASSIGN_OR_RETURN(options.retryTimeout, readMilliseconds({"--retry-timeout", flags.retryTimeout},
                                                              kRetryTimeoutSecondsMax, Zero::allowed));
  return Command(std::move(bridge));
}

Result<Command> readBench(const CLI::App& app, const RawFlags& flags, const EnvironmentGetter& environment,
                          uint32_t cores) {
  if (flags.operation == kTrainOperation) {
    PSD_RETURN_IF_ERROR(checkBenchFlags(app, flags.operation));
    return readTrainBench(flags, environment, cores);
  }
  if (flags.operation == kRowsOperation) {
    PSD_RETURN_IF_ERROR(checkBenchFlags(app, flags.operation));
    return readRowsBench(flags, environment);
  }
  BenchCommand bench;
  BenchOptions& options = bench.options;
  PSD_ASSIGN_OR_RETURN(options.client, readConnection(flags, environment));
  PSD_RETURN_IF_ERROR(checkLogLevel(flags.logLevel));
  const auto operations = benchOperations();
  const auto chosen = std::find_if(operations.begin(), operations.end(),
                                   [&](const auto& entry) { return entry.name == flags.operation; });
  if (chosen == operations.end()) {
    return Error{ErrorCode::invalidArgument,
                 "bench: '" + flags.operation + "' is not an operation; expected " + operationHelp()};
  }
  PSD_RETURN_IF_ERROR(checkBenchFlags(app, chosen->name));
  options.operation = chosen->operation;
  PSD_ASSIGN_OR_RETURN(options.bytes, parseBytes({"--size", flags.size}, 1, kBenchBytesMax));
  PSD_ASSIGN_OR_RETURN(const uint64_t trainers,
                       parseInteger({"--trainers", flags.trainers}, 1, kBenchTrainersMax));
  options.trainers = static_cast<uint32_t>(trainers);
  PSD_ASSIGN_OR_RETURN(const uint64_t outstanding,
                       parseInteger({"--outstanding", flags.outstanding}, 1, kWindowMax));
  options.outstanding = static_cast<uint32_t>(outstanding);
  PSD_RETURN_IF_ERROR(readTransfer(flags, options.client));
  PSD_ASSIGN_OR_RETURN(options.seconds, parseSeconds({"--seconds", flags.seconds}, kBenchSecondsMax));
  if (app.count("--device") > 0) bench.device = flags.device;
  bench.json = flags.json;
  bench.logLevel = flags.logLevel;
  return Command(std::move(bench));
}

}  // namespace psd

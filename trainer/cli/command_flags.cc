#include "trainer/cli/command_flags.h"

#include <algorithm>
#include <vector>

#include "common/codec/codec.h"
#include "common/text/text.h"
#include "trainer/bench/bench.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/lab/step_times.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

std::string modelHelp() {
  return joined(modelList(), "; ",
                [](const ModelEntry& entry) {
                  return std::string(entry.name) + ": " + std::string(entry.description);
                }) +
         "; FILE.pt, FILE.pt2: your own model, see docs/guides/own_models.md";
}

/// A flag of bench that not every operation supports.
struct OperationFlag {
  const char* name;
  std::vector<std::string_view> operations;  ///< that support it
};

std::vector<OperationFlag> operationFlags() {
  const std::vector<std::string_view> train{kTrainOperation}, transfer{"pull", "push", "pushpull"},
      rows{kRowsOperation}, any{"pull", "push", "pushpull", kTrainOperation, kRowsOperation};
  return {{"--transport", any},
          {"--size", transfer},
          {"--trainers", {"pull", "push", "pushpull", "latency"}},
          {"--outstanding", {"latency"}},
          {"--chunk", any},
          {"--window", any},
          {"--connections", any},
          {"--ids", rows},
          {"--dim", rows},
          {"--tables", rows},
          {"--table-rows", rows},
          {"--skew", rows},
          {"--create", rows},
          {"--creators", rows},
          {"--model", train},
          {"--device", {"pull", "push", "pushpull", kTrainOperation}},
          {"--batch-size", train},
          {"--threads", train},
          {"--inflight", train},
          {"--prefetch", train},
          {"--codec", {"push", "pushpull", kTrainOperation, kRowsOperation}},
          {"--pull-codec", {"pull", "pushpull", kTrainOperation, kRowsOperation}}};
}

/// For the commands that train.
void addOverlapFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--inflight", flags.inflight,
                 "pushes that may be unanswered while the next step computes; 0 waits for each")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--prefetch", flags.prefetch,
               "pull the parameters and rows of the next step while this one computes");
}

/// For train and bench.
void addSliceFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--chunk", flags.chunk,
                 "maximum size of a slice on the wire; auto: 1 MiB, up to 4 MiB through shared memory under "
                 "hogwild without a log or a standby, in memory of CUDA devices the daemon's limit")
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option(
         "--window", flags.window,
         "slices of --chunk in flight at a time on each connection, or more of smaller ones; auto: 4, "
         "over a network as many as fill the path to the daemon, and of large ones in shared memory 2")
      ->type_name("N")
      ->capture_default_str();
}

/// For the commands that pull and push.
void addConnectionsFlag(CLI::App& app, RawFlags& flags) {
  app.add_option(
         "--connections", flags.connections,
         "sockets of this trainer, each with an I/O thread here and an event loop there; no more than "
         "the daemon has shards, and one where memory is shared")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--spin", flags.spin,
                 "how long I/O threads poll for the next message before they sleep; for "
                 "machines with idle cores, with the daemon's spin_us")
      ->type_name("MICROSECONDS")
      ->capture_default_str();
}

/// For the commands that push.
void addCodecFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--codec", flags.codec,
                 "encoding of gradients, NAME[:option=value]; default: the daemon's choice. " + codecHelp())
      ->type_name("CODEC");
  app.add_option(
         "--pull-codec", flags.pullCodec,
         "encoding of parameters in messages: " + parameterCodecHelp() + "; default: the daemon's choice")
      ->type_name("CODEC");
}

}  // namespace

std::string dataHelp() {
  return joined(datasetList(), "; ", [](const DatasetEntry& entry) { return entry.usage; });
}

std::string operationHelp() {
  std::string text;
  for (const BenchOperationName& entry : benchOperations()) {
    text += std::string(entry.name) + ": " + std::string(entry.summary) + "; ";
  }
  return text + std::string(kTrainOperation) + ": a training step, with and without the daemon; " +
         std::string(kRowsOperation) + ": alternating pulls and pushes of embedding rows";
}

void addServerFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--server", flags.servers,
                 "the daemon, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH; of several (repeat the flag "
                 "or separate them by commas) the first that answers is used [PSD_SERVER, else MASTER_ADDR, "
                 "else tcp://localhost:5500]")
      ->type_name("ADDRESS")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  addCredentialFlags(app, flags.credentials);
}

void addTransportFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--transport", flags.transport,
                 "transport of values. auto: shared memory, of the host or of CUDA devices, where the daemon "
                 "offers it; rpc: messages only; shm: shared memory for pulls and pushes, or fail")
      ->type_name("HOW")
      ->capture_default_str();
  app.add_option("--log-level", flags.logLevel, "trace | debug | info | warn | error | off")
      ->type_name("LEVEL")
      ->capture_default_str();
}

void addConnectionFlags(CLI::App& app, RawFlags& flags) {
  addServerFlags(app, flags);
  app.add_option("--connect-timeout", flags.connectTimeout, "how long to wait for the daemon; 0: one attempt")
      ->type_name("SECONDS")
      ->capture_default_str();
}

void addCommonFlags(CLI::App& app, RawFlags& flags) {
  addConnectionFlags(app, flags);
  app.add_option("--model", flags.model, modelHelp())->type_name("MODEL")->capture_default_str();
  app.add_option("--data", flags.data, dataHelp())->type_name("DATA");
  app.add_option("--bad-lines", flags.badLines,
                 "libsvm and criteo: malformed lines that are skipped; one more is an error")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "seed of initial values, order of samples, dropout and synthetic data")
      ->type_name("N")
      ->capture_default_str();
}

void addMachineFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--device", flags.device,
                 "auto | cpu | cuda:N; auto: a GPU if available [LOCAL_RANK, else the rank]")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option(
         "--dtype", flags.dtype,
         "f32 | bf16 | f16: dtype of the parameters, in which the model computes and values and gradients "
         "travel; the daemon's own are float32")
      ->type_name("DTYPE")
      ->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "CPU threads for computation; default: the cores, divided by the number of trainers on this "
                 "machine [LOCAL_WORLD_SIZE, else the world size]")
      ->type_name("N");
  addTransportFlags(app, flags);
}

std::string parameterCodecHelp() { return joined(parameterCodecNames(), ", "); }

void addBenchFlags(CLI::App& app, RawFlags& flags) {
  auto add = [&app](const char* name, std::string& value, const char* help, const char* type) {
    app.add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  app.add_option("operation", flags.operation, operationHelp())->type_name("OPERATION")->required();
  add("--size", flags.size, "size of the parameters", "BYTES");
  add("--trainers", flags.trainers, "concurrent trainers, each a process", "N");
  add("--outstanding", flags.outstanding, "latency: unanswered calls at a time", "N");
  addSliceFlags(app, flags);
  add("--seconds", flags.seconds, "duration of the measurement", "SECONDS");
  add("--ids", flags.ids, "rows: ids per pull or push, newly drawn for each", "N");
  add("--dim", flags.dim, "rows: floats per row", "N");
  add("--tables", flags.tables, "rows: tables, among which ids and rows are divided", "N");
  add("--table-rows", flags.tableRows, "rows: number of rows in all tables together", "N");
  add("--skew", flags.skew, "rows: exponent of the Zipf distribution of ids; 0: uniform", "NUMBER");
  app.add_flag("--create", flags.create,
               "rows: measure pushes that create the rows, in place of pulls and pushes");
  add("--creators", flags.creators, "rows: additional trainers that create rows meanwhile", "N");
  add("--model", flags.model, "train: the model", "MODEL");
  app.add_option("--device", flags.device,
                 "train: auto | cpu | cuda:N; transfers: cpu (default) | cuda:N, the memory of the values in "
                 "this process")
      ->type_name("DEVICE");
  add("--batch-size", flags.batchSize, "train: samples per step", "N");
  app.add_option("--threads", flags.threads, "train: CPU threads for computation; default: the cores")
      ->type_name("N");
  addOverlapFlags(app, flags);
  addConnectionsFlag(app, flags);
  addCodecFlags(app, flags);
  app.add_flag("--json", flags.json, "print one JSON object");
}

Status checkBenchFlags(const CLI::App& app, std::string_view operation) {
  for (const auto& [name, operations] : operationFlags()) {
    if (app.count(name) == 0 || std::count(operations.begin(), operations.end(), operation) > 0) continue;
    return {ErrorCode::invalidArgument, std::string(name) + ": is for bench " + joined(operations, " | ") +
                                            ", not for " + std::string(operation)};
  }
  return {};
}

Status checkExecuteFlags(const CLI::App& app) {
  for (const char* const name :
       {"--server", "--token-file", "--transport", "--model", "--device", "--dtype", "--threads", "--init",
        "--inflight", "--prefetch", "--connections", "--spin", "--chunk", "--window", "--codec",
        "--pull-codec", "--data-plan", "--allreduce-host"}) {
    if (app.count(name) == 0) continue;
    return {ErrorCode::invalidArgument,
            std::string(name) + ": cannot be used with --execute; model and daemon are the executor's"};
  }
  return {};
}

void addTrainFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--epochs", flags.epochs, "passes over the data; default 1")->type_name("N");
  app.add_option("--steps", flags.steps, "steps of this trainer, in place of --epochs")->type_name("N");
  app.add_option(
         "--batch-size", flags.batchSize,
         "samples per step of one trainer; auto[:N], with --data-plan dynamic: chosen by the daemon so "
         "that steps take equally long on all trainers, on average N (32)")
      ->type_name("N")
      ->capture_default_str();
  addOverlapFlags(app, flags);
  app.add_option("--data-plan", flags.dataPlan,
                 "static: each rank has a fixed share of every epoch; dynamic: the daemon assigns samples")
      ->type_name("PLAN")
      ->capture_default_str();
  app.add_option(
         "--init", flags.init,
         "initial values, by tensor name, if the model is not initialized yet: a .safetensors file, else "
         "a file of torch.jit.save; default: drawn with --seed")
      ->type_name("FILE");
  app.add_flag(
      "--accept-lost-rows", flags.acceptLostRows,
      "if a restarted daemon has lost the rows of embedding tables, continue with initial rows instead "
      "of failing");
  app.add_option("--rank", flags.rank,
                 "rank of this trainer, from 0; auto: the lowest free rank [RANK, SLURM_PROCID, else 0]")
      ->type_name("N");
  app.add_option("--world-size", flags.worldSize,
                 "number of trainers [WORLD_SIZE, SLURM_NTASKS, else 1; with --rank auto the daemon's]")
      ->type_name("N");
  app.add_option("--retry-timeout", flags.retryTimeout,
                 "how long to try to reconnect when the connection breaks; 0: no retry")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--execute", flags.execute,
                 "let the psd-executor at this address, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH, "
                 "compute the passes over its daemon's parameters; this process has data and loss")
      ->type_name("ADDRESS");
  app.add_option(
         "--micro-batches", flags.microBatches,
         "with --execute: number of parts of a batch, whose passes run concurrently, so that the "
         "executor's stages alternate between forward and backward passes; from 1 to 1024 and at most "
         "the executor's `contexts`; default 1")
      ->type_name("N");
  app.add_option(
         "--allreduce-host", flags.allReduceHost,
         "under policy allreduce: host name or address at which the other trainers reach this machine; "
         "default: all trainers are on this machine")
      ->type_name("HOST");
  addConnectionsFlag(app, flags);
  addSliceFlags(app, flags);
  addCodecFlags(app, flags);
  app.add_option("--metrics", flags.metrics, "append one JSON line per step to FILE")->type_name("FILE");
  app.add_option("--tensorboard", flags.tensorboard, "write events for TensorBoard to DIR/rank-N")
      ->type_name("DIR");
}

void addSimulateFlags(CLI::App& app, RawFlags& flags) {
  const auto add = [&app](const char* name, std::string& value, const std::string& help, const char* type) {
    app.add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  add("--trainers", flags.virtualTrainers, "virtual trainers, each with its own rank and session", "N");
  add("--schedule", flags.schedule, "order of the trainers' steps in virtual time. " + StepTimes::help(),
      "SCHEDULE");
  app.add_option("--steps", flags.steps, "steps of all trainers together")->type_name("N");
  app.add_option("--time", flags.time,
                 "virtual time of the run, in units of an ordinary step; with --steps, whichever ends first")
      ->type_name("TIME");
  add("--batch-size", flags.batchSize, "samples per step of one trainer", "N");
  app.add_option(
         "--score-every", flags.scoreEvery,
         "also score the model after every N steps of all trainers together; default: only at the end")
      ->type_name("N");
  add("--byzantine", flags.byzantine,
      "number of trainers, the last ranks, that push normal noise in place of dense gradients", "N");
  add("--byzantine-deviation", flags.byzantineDeviation, "standard deviation of that noise", "NUMBER");
  addCodecFlags(app, flags);
  app.add_flag("--json", flags.json, "print one JSON object");
}

void addBridgeFlags(CLI::App& app, RawFlags& flags) {
  const auto add = [&app](const char* name, std::optional<std::string>& value, const char* help,
                          const char* type) { app.add_option(name, value, help)->type_name(type); };
  add("--local", flags.local,
      "this machine's daemon, unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT; of a replica set all",
      "ADDRESS");
  add("--local-token-file", flags.localTokenFile, "a file with the token for this machine's daemon", "FILE");
  add("--rank", flags.rank, "rank of this machine among those that average, from 0", "N");
  add("--world-size", flags.worldSize, "number of machines that average; default: the root's", "N");
  add("--state", flags.state, "folder of this bridge, with the state from which it resumes", "DIR");
  app.add_option("--retry-timeout", flags.retryTimeout, "how long to retry while a daemon is unreachable")
      ->type_name("SECONDS")
      ->capture_default_str();
}

void addEvalFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--every", flags.every,
                 "score at this interval until a signal or the daemon's end; default: once")
      ->type_name("SECONDS");
  app.add_flag("--json", flags.json, "print one JSON object per score");
  app.add_option("--metrics", flags.metrics, "append one JSON line per score to FILE")->type_name("FILE");
}

}  // namespace psd

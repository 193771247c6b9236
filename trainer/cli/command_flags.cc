#include "trainer/cli/command_flags.h"

#include <algorithm>
#include <vector>

#include "common/codec/codec.h"
#include "common/text/text.h"
#include "trainer/bench/bench.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/model/model_list.h"
#include "trainer/simulate/step_times.h"

namespace psd {
namespace {

std::string modelHelp() {
  return joined(modelList(), "; ",
                [](const ModelEntry& entry) {
                  return std::string(entry.name) + ": " + std::string(entry.description);
                }) +
         "; FILE.pt, FILE.pt2: a model of your own, see docs/own_models.md";
}

/// A flag of bench that some operations have no use for.
struct OperationFlag {
  const char* name;
  std::vector<std::string_view> operations;  ///< that have
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

/// Of the commands that train.
void addOverlapFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--inflight", flags.inflight,
                 "pushes that may be unanswered while the next step computes; 0 waits for each")
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--prefetch", flags.prefetch,
               "pull the parameters and rows of the next step while this one computes");
}

/// Of train and bench.
void addSliceFlags(CLI::App& app, RawFlags& flags) {
  app.add_option(
         "--chunk", flags.chunk,
         "of one slice on the wire, at most; auto: 1 MiB, in memory of CUDA devices all that the daemon "
         "takes")
      ->type_name("BYTES")
      ->capture_default_str();
  app.add_option(
         "--window", flags.window,
         "slices of --chunk in flight at a time on each connection, or more of smaller ones; auto: 4, "
         "and over a network as many as fill the way to the daemon")
      ->type_name("N")
      ->capture_default_str();
}

/// Of the commands that pull and push.
void addConnectionsFlag(CLI::App& app, RawFlags& flags) {
  app.add_option(
         "--connections", flags.connections,
         "sockets of this trainer, each with an I/O thread here and an event loop there; no more than "
         "the daemon has shards, and one where memory is shared")
      ->type_name("N")
      ->capture_default_str();
  app.add_option(
         "--spin", flags.spin,
         "how long I/O threads stay awake after each message, looking for the next, before they sleep; for "
         "machines with idle cores, with the daemon's spin_us")
      ->type_name("MICROSECONDS")
      ->capture_default_str();
}

/// Of the commands that push.
void addCodecFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--codec", flags.codec,
                 "how gradients travel, NAME[:option=value]; default: what the daemon says. " + codecHelp())
      ->type_name("CODEC");
  app.add_option(
         "--pull-codec", flags.pullCodec,
         "how parameters travel in messages: " + parameterCodecHelp() + "; default: what the daemon says")
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
         std::string(kRowsOperation) + ": rows of embedding tables, pulled and pushed in turns";
}

void addServerFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--server", flags.servers,
                 "the daemon, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH; of several, repeated or with "
                 "commas between "
                 "them, the first that answers is used [PSD_SERVER, else MASTER_ADDR, else "
                 "tcp://localhost:5500]")
      ->type_name("ADDRESS")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  addCredentialFlags(app, flags.credentials);
  app.add_option("--transport", flags.transport,
                 "how values travel. auto: pull and push through shared memory, of the host or of CUDA "
                 "devices, where the daemon offers it; rpc: never; shm: both, or fail")
      ->type_name("HOW")
      ->capture_default_str();
  app.add_option("--log-level", flags.logLevel, "trace | debug | info | warn | error | off")
      ->type_name("LEVEL")
      ->capture_default_str();
}

void addConnectionFlags(CLI::App& app, RawFlags& flags) {
  addServerFlags(app, flags);
  app.add_option("--connect-timeout", flags.connectTimeout, "how long to wait for the daemon")
      ->type_name("SECONDS")
      ->capture_default_str();
}

void addCommonFlags(CLI::App& app, RawFlags& flags) {
  addConnectionFlags(app, flags);
  app.add_option("--model", flags.model, modelHelp())->type_name("MODEL")->capture_default_str();
  app.add_option("--data", flags.data, dataHelp())->type_name("DATA");
  app.add_option("--device", flags.device,
                 "auto | cpu | cuda:N; auto: a GPU if there is one [LOCAL_RANK, else the rank]")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "CPU threads to compute with; default: the cores, shared with the other trainers here as "
                 "far as they "
                 "are known [LOCAL_WORLD_SIZE, else the world size]")
      ->type_name("N");
  app.add_option("--seed", flags.seed, "of initial values, order of samples, dropout, synthetic data")
      ->type_name("N")
      ->capture_default_str();
}

std::string parameterCodecHelp() { return joined(parameterCodecNames(), ", "); }

void addBenchFlags(CLI::App& app, RawFlags& flags) {
  auto add = [&app](const char* name, std::string& value, const char* help, const char* type) {
    app.add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  app.add_option("operation", flags.operation, operationHelp())->type_name("OPERATION")->required();
  add("--size", flags.size, "of the parameters", "BYTES");
  add("--trainers", flags.trainers, "at once, each a process", "N");
  add("--outstanding", flags.outstanding, "latency: calls unanswered at a time", "N");
  addSliceFlags(app, flags);
  add("--seconds", flags.seconds, "how long to measure", "SECONDS");
  add("--ids", flags.ids, "rows: of one pull or push, drawn anew for each", "N");
  add("--dim", flags.dim, "rows: floats of a row", "N");
  add("--tables", flags.tables, "rows: that share ids and rows", "N");
  add("--table-rows", flags.tableRows, "rows: that there are, of all tables together", "N");
  add("--skew", flags.skew, "rows: exponent of Zipf's law, by which ids are drawn; 0: all alike", "NUMBER");
  app.add_flag("--create", flags.create,
               "rows: push the rows until all are there, in place of pulls and pushes");
  add("--creators", flags.creators, "rows: further trainers that make rows meanwhile", "N");
  add("--model", flags.model, "train: the model", "MODEL");
  app.add_option(
         "--device", flags.device,
         "train: auto | cpu | cuda:N; of transfers cpu (if not given) | cuda:N: where the values are at "
         "this end")
      ->type_name("DEVICE");
  add("--batch-size", flags.batchSize, "train: samples per step", "N");
  app.add_option("--threads", flags.threads, "train: CPU threads to compute with; default: the cores")
      ->type_name("N");
  addOverlapFlags(app, flags);
  addConnectionsFlag(app, flags);
  addCodecFlags(app, flags);
  app.add_flag("--json", flags.json, "print one JSON object");
}

Status checkBenchFlags(const CLI::App& app, std::string_view operation) {
  for (const auto& [name, operations] : operationFlags()) {
    if (app.count(name) == 0 || std::count(operations.begin(), operations.end(), operation) > 0) continue;
    return {ErrorCode::invalidArgument, std::string(name) + ": goes with bench " + joined(operations, " | ") +
                                            ", not with " + std::string(operation)};
  }
  return {};
}

Status checkExecuteFlags(const CLI::App& app) {
  for (const char* const name :
       {"--server", "--token-file", "--transport", "--model", "--device", "--threads", "--init", "--inflight",
        "--prefetch", "--connections", "--spin", "--chunk", "--window", "--codec", "--pull-codec",
        "--data-plan", "--allreduce-host"}) {
    if (app.count(name) == 0) continue;
    return {ErrorCode::invalidArgument,
            std::string(name) + ": goes without --execute; with it, model and daemon are the executor's"};
  }
  return {};
}

void addTrainFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--rank", flags.rank,
                 "this trainer's place, from 0; auto: the lowest that is free [RANK, SLURM_PROCID, else 0]")
      ->type_name("N");
  app.add_option(
         "--world-size", flags.worldSize,
         "number of trainers [WORLD_SIZE, SLURM_NTASKS, else 1; with --rank auto what the daemon says]")
      ->type_name("N");
  app.add_option("--execute", flags.execute,
                 "have a psd-executor at this address, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH, "
                 "compute the passes over its "
                 "daemon's parameters; here are data and loss")
      ->type_name("ADDRESS");
  app.add_option(
         "--micro-batches", flags.microBatches,
         "with --execute: into so many parts a batch is divided, whose passes go on side by side, so "
         "that stages of the executor do forward and backward passes in turn; from 1 to 1024 and as many as "
         "the executor's `contexts` allows; default 1")
      ->type_name("N");
  app.add_option(
         "--allreduce-host", flags.allReduceHost,
         "where policy allreduce has trainers average gradients: the host name or address of this machine "
         "at which the others reach it; without it they are on this machine")
      ->type_name("HOST");
  app.add_option("--epochs", flags.epochs, "passes over the data; default 1")->type_name("N");
  app.add_option("--steps", flags.steps, "instead of --epochs: steps of this trainer")->type_name("N");
  app.add_option(
         "--batch-size", flags.batchSize,
         "samples per step of one trainer; auto[:N], with --data-plan dynamic: the daemon chooses, so that "
         "all trainers take as long for a step, on average N (32)")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--retry-timeout", flags.retryTimeout,
                 "how long to try to come back when the connection breaks; 0: not at all")
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_flag(
      "--go-on-without-rows", flags.goOnWithoutRows,
      "should the daemon come back without the rows of embedding tables, go on with rows as they begin, "
      "instead of failing");
  app.add_option(
         "--data-plan", flags.dataPlan,
         "static: each rank trains the same share of every epoch; dynamic: the daemon deals the samples")
      ->type_name("PLAN")
      ->capture_default_str();
  addOverlapFlags(app, flags);
  addConnectionsFlag(app, flags);
  addSliceFlags(app, flags);
  addCodecFlags(app, flags);
  app.add_option(
         "--init", flags.init,
         "values that the model begins with where it has none yet, by the tensors' names: a .safetensors "
         "file, else one of torch.jit.save; default: drawn with --seed")
      ->type_name("FILE");
  app.add_option("--metrics", flags.metrics, "add one JSON line per step to FILE")->type_name("FILE");
  app.add_option("--tensorboard", flags.tensorboard, "write events for TensorBoard to DIR/rank-N")
      ->type_name("DIR");
}

void addSimulateFlags(CLI::App& app, RawFlags& flags) {
  const auto add = [&app](const char* name, std::string& value, const std::string& help, const char* type) {
    app.add_option(name, value, help)->type_name(type)->capture_default_str();
  };
  add("--trainers", flags.virtualTrainers, "virtual trainers, each with a rank and a session of its own",
      "N");
  add("--schedule", flags.schedule, "whose step is done next, in virtual time. " + StepTimes::help(),
      "SCHEDULE");
  app.add_option("--steps", flags.steps, "steps of all trainers together")->type_name("N");
  app.add_option(
         "--time", flags.time,
         "virtual time that the run takes, 1 being that of an ordinary step; with --steps, whichever is "
         "first")
      ->type_name("TIME");
  add("--batch-size", flags.batchSize, "samples per step of one trainer", "N");
  app.add_option(
         "--score-every", flags.scoreEvery,
         "score the model after so many steps of all trainers together, too; default: at the end alone")
      ->type_name("N");
  add("--byzantine", flags.byzantine,
      "so many trainers, the last ranks, push normal noise in place of what they have for dense parameters",
      "N");
  add("--byzantine-deviation", flags.byzantineDeviation, "of that noise", "NUMBER");
  addCodecFlags(app, flags);
  app.add_flag("--json", flags.json, "print one JSON object");
}

void addBridgeFlags(CLI::App& app, RawFlags& flags) {
  const auto add = [&app](const char* name, std::optional<std::string>& value, const char* help,
                          const char* type) { app.add_option(name, value, help)->type_name(type); };
  add("--local", flags.local,
      "this machine's daemon, unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT; of a pair both, with a comma",
      "ADDRESS");
  add("--local-token-file", flags.localTokenFile, "a file with the token for this machine's daemon", "FILE");
  add("--rank", flags.rank, "this machine's place among those that average, from 0", "N");
  add("--world-size", flags.worldSize, "number of these; default: what the root says", "N");
  add("--state", flags.state,
      "a folder of this bridge's own, in which it keeps what it needs to go on where it was", "DIR");
  app.add_option("--retry-timeout", flags.retryTimeout, "how long to try while a daemon is away")
      ->type_name("SECONDS")
      ->capture_default_str();
}

void addEvalFlags(CLI::App& app, RawFlags& flags) {
  app.add_option("--every", flags.every,
                 "score again and again, so often, until a signal or the daemon's end; default: once")
      ->type_name("SECONDS");
  app.add_flag("--json", flags.json, "print one JSON object per score");
  app.add_option("--metrics", flags.metrics, "add one JSON line per score to FILE")->type_name("FILE");
}

}  // namespace psd

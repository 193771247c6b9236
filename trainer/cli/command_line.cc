#include "trainer/cli/command_line.h"

#include <memory>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/cli/text_commands.h"
#include "common/cli/usage_error.h"
#include "common/codec/codec.h"
#include "trainer/bench/bench.h"
#include "trainer/cli/command_flags.h"
#include "trainer/cli/read_commands.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/model/model_list.h"

namespace psd {
namespace {

constexpr const char* kTrainerExamples =
    "Example: psd-trainer train --data synthetic --model mlp\n"
    "         psd-trainer eval --data synthetic --model mlp\n\n"
    "The default of --server is tcp://localhost:5500. More is in\n"
    "docs/reference/trainer.md; 'psd-trainer help COMMAND' explains a command.\n\n"
    "Exit status: 0 done, 1 failed, 2 usage error, 128 + N ended by signal N.";

const std::vector<OptionGroup> kOptionGroups{
    {"Daemon",
     {"--server", "--local", "--connect-timeout", "--retry-timeout", "--token-file", "--local-token-file",
      "--tls-ca", "--tls-cert", "--tls-key"}},
    {"Model and data",
     {"--model", "--data", "--bad-lines", "--data-plan", "--dtype", "--init", "--seed",
      "--accept-lost-rows"}},
    {"Length and steps", {"--epochs", "--steps", "--time", "--batch-size", "--inflight", "--prefetch"}},
    {"Membership",
     {"--rank", "--world-size", "--trainers", "--schedule", "--byzantine", "--byzantine-deviation"}},
    {"This machine", {"--device", "--threads", "--state"}},
    {"Remote execution", {"--execute", "--micro-batches"}},
    {"Transfer",
     {"--transport", "--connections", "--spin", "--codec", "--pull-codec", "--allreduce-host", "--chunk",
      "--window"}},
    {"Output", {"--every", "--score-every", "--json", "--metrics", "--tensorboard", "--log-level"}}};

template <class Range, class Name>
std::vector<std::string> namesOf(const Range& range, const Name& name) {
  std::vector<std::string> names;
  for (const auto& entry : range) names.emplace_back(name(entry));
  return names;
}

/// The data sets that have a name to type.
std::vector<std::string> dataNames() {
  std::vector<std::string> names =
      namesOf(datasetList(), [](const DatasetEntry& entry) { return entry.name; });
  std::erase(names, "files");  // read by the names of the files
  return names;
}

CompletionWords completionWords() {
  const auto itself = [](std::string_view name) { return name; };
  auto operations = namesOf(benchOperations(), [](const auto& entry) { return entry.name; });
  operations.insert(operations.end(), {std::string(kTrainOperation), std::string(kRowsOperation)});
  return {.ofOption = {{"--model", namesOf(modelList(), [](const ModelEntry& entry) { return entry.name; })},
                       {"--data", dataNames()},
                       {"--codec", namesOf(codecNames(), itself)},
                       {"--pull-codec", namesOf(parameterCodecNames(), itself)},
                       {"--transport", {"auto", "rpc", "shm"}},
                       {"--schedule", {"round_robin", "seed:1", "straggler"}},
                       {"--device", {"auto", "cpu", "cuda:0"}},
                       {"--data-plan", {"static", "dynamic"}},
                       {"--log-level", namesOf(kLogLevels, itself)},
                       {"operation", operations}},
          .ofKey = {},
          .paths = {"--model", "--data"}};
}

constexpr std::string_view kAbsentHint = "this build (PSD_LEAN) lacks it; build the preset release";
const CommandHints kAbsentHints = {
    {"simulate", kAbsentHint}, {"bridge", kAbsentHint}, {"bench", kAbsentHint}};

/// Removes what PSD_LEAN omits. Returns the commands, which must outlive pointers to them.
std::vector<std::shared_ptr<CLI::App>> removeAbsent(CLI::App& app, CLI::App& train) {
  std::vector<std::shared_ptr<CLI::App>> removed;
  for (const auto& [name, hint] : kAbsentHints) {
    removed.push_back(app.get_subcommand_ptr(std::string(name)));
    app.remove_subcommand(removed.back().get());
  }
  for (const char* const flag : {"--execute", "--micro-batches", "--allreduce-host"})
    train.remove_option(train.get_option(flag));
  return removed;
}

/// The commands of psd-trainer, which write their flags to `flags`.
struct Commands {
  CLI::App *train, *eval, *simulate, *bridge, *bench;

  Commands(CLI::App& app, RawFlags& flags)
      : train(app.add_subcommand("train", "Pull, compute gradients, push, until done")),
        eval(app.add_subcommand("eval", "Score the daemon's model, once or while others train it")),
        simulate(app.add_subcommand(
            "simulate", "Train with many virtual trainers in this process, in a deterministic order")),
        bridge(app.add_subcommand(
            "bridge",
            "Average this machine's daemon with those of other machines, through a daemon with a policy of "
            "local steps")),
        bench(app.add_subcommand(
            "bench",
            "Measure a running daemon that holds no other model; restart the daemon afterwards to train")) {
    addCommonFlags(*train, flags);
    addTrainFlags(*train, flags);
    addMachineFlags(*train, flags);
    addCommonFlags(*eval, flags);
    addEvalFlags(*eval, flags);
    addMachineFlags(*eval, flags);
    addCommonFlags(*simulate, flags);
    addSimulateFlags(*simulate, flags);
    addMachineFlags(*simulate, flags);
    addServerFlags(*bridge, flags);
    addBridgeFlags(*bridge, flags);
    addTransportFlags(*bridge, flags);
    addConnectionFlags(*bench, flags);
    addBenchFlags(*bench, flags);
    addTransportFlags(*bench, flags);
    train->footer("Example: psd-trainer train --data synthetic --model mlp");
    eval->footer("Example: psd-trainer eval --data synthetic --model mlp");
    simulate->footer(
        "Example: psd-trainer simulate --trainers 30 --schedule seed:1 --steps 3000 --data synthetic --model "
        "mlp");
    bridge->footer(
        "Example: psd-trainer bridge --local unix:///run/psd/psd.sock --server tcp://root:5500 --rank 0 "
        "--state "
        "/var/lib/psd-bridge");
    bench->footer("Example: psd-trainer bench pull --size 64M");
  }
};

}  // namespace

Result<Command> parseCommandLine(std::span<const char* const> arguments, const EnvironmentGetter& environment,
                                 uint32_t cores, bool lean) {
  RawFlags flags;
  CLI::App app("Trains and scores models whose parameters a psd daemon holds.", "psd-trainer");
  app.set_version_flag("--version", "psd-trainer " PSD_VERSION);
  app.require_subcommand(1);
  const Commands commands(app, flags);
  app.footer(kTrainerExamples);
  const auto absent = lean ? removeAbsent(app, *commands.train) : std::vector<std::shared_ptr<CLI::App>>();
  groupOptions(app, kOptionGroups);
  const TextCommands texts(app, completionWords);
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
  } catch (const CLI::CallForVersion& version) {
    return Command(PrintText{std::string(version.what()) + "\n"});
  } catch (const CLI::CallForHelp&) {
    return Command(PrintText{app.help()});
  } catch (const CLI::ParseError& error) {
    return usageError(error, app, lean ? kAbsentHints : CommandHints());
  }
  if (auto text = texts.run()) {
    if (!text->ok()) return text->error();
    return Command(PrintText{**std::move(text)});
  }
  if (commands.simulate->parsed()) return readSimulate(flags, environment, cores);
  if (commands.bridge->parsed()) return readBridge(flags, environment);
  if (commands.bench->parsed()) return readBench(*commands.bench, flags, environment, cores);
  if (flags.execute) PSD_RETURN_IF_ERROR(checkExecuteFlags(*commands.train));
  return commands.train->parsed() ? readTrain(flags, environment, cores)
                                  : readEval(flags, environment, cores);
}

}  // namespace psd

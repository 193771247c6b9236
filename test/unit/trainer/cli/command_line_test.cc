#include "trainer/cli/command_line.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "test/support/catch.h"

namespace psd::command_line_test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;

constexpr uint32_t kCores = 8;

Result<Command> parse(std::vector<const char*> arguments,
                      const std::map<std::string, std::string>& variables = {}, bool lean = false) {
  arguments.insert(arguments.begin(), "psd-trainer");
  return parseCommandLine(
      arguments,
      [&](const char* name) -> const char* {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      kCores, lean);
}

/// "train --server tcp://h:1 --data d" and the flags that a test adds.
Result<Command> parseTrain(const std::vector<const char*>& more,
                           const std::map<std::string, std::string>& variables = {}) {
  std::vector<const char*> arguments{"train", "--server", "tcp://h:1", "--data", "d"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return parse(arguments, variables);
}

TrainCommand train(const std::vector<const char*>& more,
                   const std::map<std::string, std::string>& variables = {}) {
  auto command = parseTrain(more, variables);
  PSD_REQUIRE_OK(command);
  return std::get<TrainCommand>(*command);
}

}  // namespace

TEST_CASE("train's defaults") {
  const TrainCommand command = train({});
  CHECK(command.common.client.servers == std::vector<std::string>{"tcp://h:1"});
  CHECK(command.common.client.connectTimeout == std::chrono::seconds(30));
  CHECK(command.common.client.retryTimeout == std::chrono::seconds(60));
  CHECK(command.common.model == "mnist_cnn");
  CHECK(command.common.device == "auto");
  CHECK(command.common.threads == kCores);
  CHECK(command.loop.epochs == 1);
  CHECK(command.loop.steps == 0);
  CHECK(command.loop.batchSize == 32);
  CHECK(command.loop.seed == 1);
  CHECK(command.loop.inflight == 0);
  CHECK(command.common.client.connections == 1);
  CHECK_FALSE(command.loop.prefetch);
  CHECK_FALSE(command.common.client.acceptLostRows);
  CHECK_FALSE(command.loop.assignedSamples);
  CHECK_FALSE(command.loop.autoBatch);
  CHECK_FALSE(command.loop.membership.anyRank);
  CHECK(command.initFile.empty());
  CHECK(command.metricsFile.empty());
}

TEST_CASE("every train flag is parsed") {
  const TrainCommand command = train({"--server",
                                      "unix:///s",
                                      "--rank",
                                      "1",
                                      "--world-size",
                                      "4",
                                      "--model",
                                      "mlp",
                                      "--steps",
                                      "9",
                                      "--batch-size",
                                      "5",
                                      "--seed",
                                      "42",
                                      "--device",
                                      "cuda:1",
                                      "--threads",
                                      "3",
                                      "--connect-timeout",
                                      "0.5",
                                      "--retry-timeout",
                                      "7.5",
                                      "--log-level",
                                      "warn",
                                      "--inflight",
                                      "2",
                                      "--prefetch",
                                      "--accept-lost-rows",
                                      "--init",
                                      "begin.pt",
                                      "--metrics",
                                      "m.jsonl"});
  CHECK(command.loop.inflight == 2);
  CHECK(command.loop.prefetch);
  CHECK(command.common.client.acceptLostRows);
  CHECK(command.common.client.servers == std::vector<std::string>{"tcp://h:1", "unix:///s"});
  CHECK(command.loop.membership.rank == Rank{1});
  CHECK(command.loop.membership.worldSize == 4);
  CHECK(command.common.model == "mlp");
  CHECK(command.loop.steps == 9);
  CHECK(command.loop.batchSize == 5);
  CHECK(command.loop.seed == 42);
  CHECK(command.common.seed == 42);
  CHECK(command.common.device == "cuda:1");
  CHECK(command.common.threads == 3);
  CHECK(command.common.client.connectTimeout == std::chrono::milliseconds(500));
  CHECK(command.common.client.retryTimeout == std::chrono::milliseconds(7500));
  CHECK(train({"--retry-timeout", "0"}).common.client.retryTimeout == std::chrono::milliseconds(0));
  CHECK(train({"--connect-timeout", "0"}).common.client.connectTimeout == std::chrono::milliseconds(0));
  CHECK(command.common.logLevel == "warn");
  CHECK(command.initFile == "begin.pt");
  CHECK(command.metricsFile == "m.jsonl");
  CHECK(train({"--epochs", "3"}).loop.epochs == 3);
  CHECK(train({"--data-plan", "dynamic"}).loop.assignedSamples);
  CHECK(train({"--rank", "auto"}).loop.membership.anyRank);
  const LoopOptions nominal = train({"--data-plan", "dynamic", "--batch-size", "auto"}).loop;
  CHECK(nominal.autoBatch);
  CHECK(nominal.batchSize == 32);
  const LoopOptions chosen = train({"--data-plan", "dynamic", "--batch-size", "auto:48"}).loop;
  CHECK(chosen.autoBatch);
  CHECK(chosen.batchSize == 48);
}

TEST_CASE("transport flags belong to the commands that train") {
  const ClientOptions usual = train({}).common.client,
                      said = train({"--chunk", "64K", "--window", "7"}).common.client;
  CHECK(usual.window == 0);  // which grows
  CHECK(usual.chunkBytes == 1 << 20);
  CHECK(usual.ringChunkBytes == 4 << 20);
  CHECK(said.window == 7);
  CHECK(said.chunkBytes == 64 << 10);
  CHECK(said.ringChunkBytes == 64 << 10);
  CHECK(train({"--window", "auto"}).common.client.window == 0);
  for (const char* wrong : {"0", "1025", "wide"}) {
    CHECK_THAT(parseTrain({"--window", wrong}).message(), Contains("--window"));
  }
}

TEST_CASE("several connections, for commands that train or move values") {
  CHECK(train({"--connections", "3"}).common.client.connections == 3);
  CHECK(train({}).common.client.spin == std::chrono::microseconds(0));
  CHECK(train({"--spin", "50"}).common.client.spin == std::chrono::microseconds(50));
  const auto bench = parse({"bench", "push", "--server", "tcp://h:1", "--connections", "64"});
  PSD_REQUIRE_OK(bench);
  CHECK(std::get<BenchCommand>(*bench).options.client.connections == 64);
  const auto step = parse({"bench", "train", "--server", "tcp://h:1", "--connections", "2"});
  PSD_REQUIRE_OK(step);
  CHECK(std::get<TrainBenchCommand>(*step).common.client.connections == 2);
  for (const char* wrong : {"0", "65", "two"}) {
    const auto refused = parseTrain({"--connections", wrong});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.message(), Contains("--connections"));
  }
}

TEST_CASE("the cores are divided among the trainers of a machine") {
  CHECK(train({"--rank", "0", "--world-size", "4"}).common.threads == 2);
  CHECK(train({"--rank", "0", "--world-size", "100"}).common.threads == 1);
  CHECK(train({}, {{"RANK", "3"}, {"WORLD_SIZE", "16"}, {"LOCAL_WORLD_SIZE", "2"}}).common.threads == 4);
}

TEST_CASE("eval repeats with --every") {
  const auto command =
      parse({"eval", "--server", "tcp://h:2", "--data", "d", "--every", "0.25", "--metrics", "m"});
  PSD_REQUIRE_OK(command);
  CHECK(std::get<EvalCommand>(*command).every == std::chrono::milliseconds(250));
  CHECK(std::get<EvalCommand>(*command).metricsFile == "m");
  for (const char* every : {"0", "-1", "often", "86401"}) {
    CHECK_THAT(parse({"eval", "--server", "tcp://h:2", "--data", "d", "--every", every}).message(),
               Contains("--every: ") && Contains(every));
  }
  CHECK_THAT(parse({"train", "--server", "tcp://h:2", "--data", "d", "--every", "1"}).message(),
             Contains("--every"));
}

TEST_CASE("bridge parses the flags of both daemons") {
  const auto command = parse({"bridge", "--local", "unix:///a,unix:///b", "--server", "tcp://h:1", "--rank",
                              "2", "--state", "s", "--transport", "shm", "--retry-timeout", "7"},
                             {{"RANK", "5"}, {"WORLD_SIZE", "9"}});
  PSD_REQUIRE_OK(command);
  const BridgeOptions& options = std::get<BridgeCommand>(*command).options;
  CHECK(options.local.servers == std::vector<std::string>{"unix:///a", "unix:///b"});
  CHECK(options.root.servers == std::vector<std::string>{"tcp://h:1"});
  // Memory is shared with this machine's daemon alone.
  CHECK(options.local.transport == Transport::shm);
  CHECK(options.root.transport == Transport::automatic);
  CHECK(options.membership.rank == Rank{2});
  CHECK(options.membership.worldSize == 0);
  CHECK(options.folder == "s");
  CHECK(options.retryTimeout == std::chrono::seconds(7));
}

TEST_CASE("bridge names what is missing or wrong") {
  const auto refusal = [](std::vector<const char*> more) {
    more.insert(more.begin(), "bridge");
    const auto command = parse(more);
    REQUIRE_FALSE(command.ok());
    return command.message();
  };
  CHECK_THAT(refusal({}), StartsWith("--local is missing"));
  CHECK_THAT(refusal({"--local", "nowhere://x"}), StartsWith("--local: address"));
  CHECK_THAT(refusal({"--local", "unix:///x", "--local-token-file", "/nowhere"}),
             StartsWith("--local-token-file: "));
  CHECK_THAT(refusal({"--local", "unix:///a", "--server", "unix:///a"}), Contains("connects two daemons"));
  CHECK_THAT(refusal({"--local", "tcp://a:1", "--transport", "shm"}), StartsWith("--transport: "));
  CHECK_THAT(refusal({"--local", "unix:///a"}), StartsWith("--rank is missing"));
  CHECK_THAT(refusal({"--local", "unix:///a", "--rank", "auto"}), StartsWith("--rank"));
  CHECK_THAT(refusal({"--local", "unix:///a", "--rank", "0"}), StartsWith("--state is missing"));
  CHECK_THAT(refusal({"--local", "unix:///a", "--connect-timeout", "1"}), Contains("--connect-timeout"));
}

TEST_CASE("simulate parses the number of trainers and their order") {
  const auto command = parse({"simulate", "--data",       "d",      "--trainers",
                              "30",       "--schedule",   "seed:7", "--steps",
                              "90",       "--time",       "2.5",    "--score-every",
                              "10",       "--byzantine",  "2",      "--byzantine-deviation",
                              "0.5",      "--batch-size", "8",      "--seed",
                              "4",        "--codec",      "int8",   "--json"},
                             {{"RANK", "3"}});
  PSD_REQUIRE_OK(command);
  const auto& simulate = std::get<SimulateCommand>(*command);
  CHECK(simulate.schedule == "seed:7");
  CHECK(simulate.json);
  CHECK(simulate.common.threads == 1);
  CHECK(simulate.options.trainers == 30);
  CHECK(simulate.options.steps == 90);
  CHECK(simulate.options.time == 2.5);
  CHECK(simulate.options.scoreEvery == 10);
  CHECK(simulate.options.byzantine == 2);
  CHECK(simulate.options.byzantineDeviation == 0.5);
  CHECK(simulate.options.batchSize == 8);
  CHECK(simulate.options.seed == 4);
  CHECK(simulate.options.client.codec == "int8");
  CHECK(simulate.options.client.retryTimeout.count() == 0);
}

TEST_CASE("settings that simulate does not support are rejected in one line") {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases{
      {{}, "--steps is missing"},
      {{"--steps", "0"}, "--steps: '0'"},
      {{"--steps", "1", "--trainers", "0"}, "--trainers: '0' is not a whole number from 1 to 256"},
      {{"--steps", "1", "--trainers", "257"}, "--trainers: '257'"},
      {{"--steps", "1", "--schedule", "fast"}, "--schedule: 'fast' is not a schedule; expected round_robin"},
      {{"--steps", "1", "--schedule", "seed"}, "--schedule: 'seed' has no seed"},
      {{"--steps", "1", "--schedule", "seed:one"}, "has no seed"},
      {{"--steps", "1", "--schedule", "straggler:factr=2"}, "'factr' is not an option"},
      {{"--steps", "1", "--schedule", "straggler:factor=0.5"}, "factor must be"},
      {{"--steps", "1", "--byzantine", "5"}, "--byzantine: '5' is not a whole number from 0 to 4"},
      {{"--steps", "1", "--byzantine-deviation", "-1"}, "--byzantine-deviation: '-1'"},
      {{"--time", "-1"}, "--time: '-1'"},
      {{"--steps", "1", "--score-every", "0"}, "--score-every: '0'"},
      {{"--steps", "1", "--codec", "zip"}, "--codec: "},
      {{"--steps", "1", "--rank", "1"}, "--rank"},
      {{"--steps", "1", "--inflight", "1"}, "--inflight"}};
  for (const auto& [flags, words] : cases) {
    std::vector<const char*> arguments{"simulate", "--data", "d"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const auto refused = parse(arguments);
    INFO(words);
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.message(), Contains(words));
    CHECK(refused.message().find('\n') == std::string::npos);
  }
}

TEST_CASE("eval has no rank, whatever the environment says") {
  auto command = parse({"eval", "--data", "d", "--json"},
                       {{"PSD_SERVER", "tcp://h:2"}, {"RANK", "x"}, {"WORLD_SIZE", "y"}});
  PSD_REQUIRE_OK(command);
  const auto& eval = std::get<EvalCommand>(*command);
  CHECK(eval.json);
  CHECK(eval.every.count() == 0);
  CHECK(eval.metricsFile.empty());
  CHECK(eval.common.client.servers == std::vector<std::string>{"tcp://h:2"});
  CHECK(eval.common.threads == kCores);
}

TEST_CASE("every command has the transport flags") {
  const auto transportOf = [](const std::vector<const char*>& arguments) {
    auto command = parse(arguments);
    PSD_REQUIRE_OK(command);
    if (const auto* each = std::get_if<TrainCommand>(&*command)) return each->common.client.transport;
    if (const auto* each = std::get_if<EvalCommand>(&*command)) return each->common.client.transport;
    if (const auto* each = std::get_if<TrainBenchCommand>(&*command)) return each->common.client.transport;
    return std::get<BenchCommand>(*command).options.client.transport;
  };
  const std::vector<std::vector<const char*>> commands = {
      {"train", "--server", "unix:///s", "--data", "d"},
      {"eval", "--server", "unix:///s", "--data", "d"},
      {"bench", "pull", "--server", "unix:///s"},
      {"bench", "train", "--server", "unix:///s"},
  };
  for (const auto& command : commands) {
    INFO(command[0] << " " << command[1]);
    CHECK(transportOf(command) == Transport::automatic);
    for (const auto& [name, transport] :
         {std::pair{"auto", Transport::automatic}, {"rpc", Transport::rpc}, {"shm", Transport::shm}}) {
      auto with = command;
      with.insert(with.end(), {"--transport", name});
      CHECK(transportOf(with) == transport);
    }
    auto wrong = command;
    wrong.insert(wrong.end(), {"--transport", "pigeon"});
    CHECK(parse(wrong).message() == "--transport: 'pigeon' is not a transport; expected auto, rpc or shm");
  }
}

TEST_CASE("settings that shared memory does not support are rejected before the daemon is contacted") {
  CHECK_THAT(
      parseTrain({"--transport", "shm"}).message(),
      Contains("--transport: memory is shared over Unix sockets only, so shm cannot be used with 'tcp:"));
  const std::vector<const char*> shared = {"train", "--server",    "unix:///s", "--data",
                                           "d",     "--transport", "shm"};
  auto none = shared, int8 = shared;
  none.insert(none.end(), {"--codec", "none"});
  int8.insert(int8.end(), {"--codec", "int8"});
  PSD_REQUIRE_OK(parse(none));
  CHECK_THAT(parse(int8).message(), Contains("so shm cannot be used with --codec int8"));
}

TEST_CASE("both --version and --help print") {
  CHECK(std::get<PrintText>(*parse({"--version"})).text == "psd-trainer " PSD_VERSION "\n");
  CHECK_THAT(std::get<PrintText>(*parse({"--help"})).text, Contains("train") && Contains("eval"));
  CHECK_THAT(std::get<PrintText>(*parse({"train", "--help"})).text,
             Contains("--world-size") && Contains("mlp: 784-256-10, ReLU; mnist_cnn: ") &&
                 Contains("synthetic[:N]"));
}

TEST_CASE("bench rows: what is pulled and pushed") {
  const auto plain = parse({"bench", "rows", "--server", "tcp://h:1"});
  PSD_REQUIRE_OK(plain);
  CHECK(std::get<RowsBenchCommand>(*plain).options.ids == 100'000);
  const auto chosen =
      parse({"bench", "rows", "--server", "tcp://h:1", "--ids", "2048", "--dim", "16", "--tables", "26",
             "--table-rows", "5000", "--skew", "1.05", "--create", "--creators", "2", "--json"});
  PSD_REQUIRE_OK(chosen);
  const auto& command = std::get<RowsBenchCommand>(*chosen);
  CHECK(command.json);
  CHECK(command.options.ids == 2048);
  CHECK(command.options.dim == 16);
  CHECK(command.options.tables == 26);
  CHECK(command.options.rows == 5000);
  CHECK(command.options.skew == 1.05);
  CHECK(command.options.create);
  CHECK(command.options.creators == 2);
  for (const char* flag : {"--dim", "--tables", "--ids", "--table-rows"}) {
    const auto refused = parse({"bench", "rows", "--server", "tcp://h:1", flag, "0"});
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.message(), Contains(flag));
  }
}

TEST_CASE("bench rejects flags that the operation does not use") {
  const auto problem = [](const char* operation, const char* flag, const char* value) {
    std::vector<const char*> arguments{"bench", operation, "--server", "tcp://h:1", flag};
    if (value != nullptr) arguments.push_back(value);
    return parse(arguments).status().message();
  };
  struct Case {
    const char *flag, *value;
    std::vector<const char*> operations;  // that accept it
  };
  const std::vector<Case> cases = {
      {"--transport", "rpc", {"pull", "push", "pushpull", "train", "rows"}},
      {"--size", "1M", {"pull", "push", "pushpull"}},
      {"--trainers", "2", {"pull", "push", "pushpull", "latency"}},
      {"--outstanding", "2", {"latency"}},
      {"--chunk", "1M", {"pull", "push", "pushpull", "train", "rows"}},
      {"--window", "2", {"pull", "push", "pushpull", "train", "rows"}},
      {"--connections", "2", {"pull", "push", "pushpull", "train", "rows"}},
      {"--ids", "5", {"rows"}},
      {"--dim", "5", {"rows"}},
      {"--tables", "5", {"rows"}},
      {"--table-rows", "5", {"rows"}},
      {"--skew", "1.05", {"rows"}},
      {"--create", nullptr, {"rows"}},
      {"--creators", "1", {"rows"}},
      {"--model", "mlp", {"train"}},
      {"--device", "cpu", {"pull", "push", "pushpull", "train"}},
      {"--batch-size", "8", {"train"}},
      {"--threads", "1", {"train"}},
      {"--inflight", "3", {"train"}},
      {"--prefetch", nullptr, {"train"}},
      {"--codec", "topk", {"push", "pushpull", "train", "rows"}},
      {"--pull-codec", "fp16", {"pull", "pushpull", "train", "rows"}},
      {"--seconds", "1", {"pull", "push", "pushpull", "latency", "train", "rows"}},
      {"--json", nullptr, {"pull", "push", "pushpull", "latency", "train", "rows"}},
  };
  for (const auto& [flag, value, operations] : cases) {
    std::string text;
    for (const char* operation : operations) text += (text.empty() ? "" : " | ") + std::string(operation);
    for (const std::string operation : {"pull", "push", "pushpull", "latency", "train", "rows"}) {
      INFO("bench " << operation << " " << flag);
      const bool takes = std::count(operations.begin(), operations.end(), operation) > 0;
      CHECK(problem(operation.c_str(), flag, value) ==
            (takes ? "" : std::string(flag) + ": is for bench " + text + ", not for " + operation));
    }
  }
  CHECK_THAT(problem("pul", "--batch-size", "8"), StartsWith("bench: 'pul' is not an operation"));
}

TEST_CASE("wrong usage is one line that names the flag") {
  const auto problem = [](const Result<Command>& command) {
    REQUIRE_FALSE(command.ok());
    CHECK(command.message().find('\n') == std::string::npos);
    return command.message();
  };
  CHECK_THAT(problem(parseTrain({"--epoch", "2"})),
             Contains("--epoch: no such option; did you mean --epochs?"));
  CHECK_THAT(problem(parseTrain({"--batchsize=2"})), Contains("did you mean --batch-size?"));
  CHECK(problem(parse({"--server", "tcp://h", "train", "--data", "d"})) ==
        "--server: belongs after the command, as in 'psd-trainer train --server …'");
  CHECK(problem(parse({"--data", "d", "eval", "--server", "tcp://h"})) ==
        "--data: belongs after the command, as in 'psd-trainer eval --data …'");
  CHECK(problem(parseTrain({"--init", ""})) == "--init: the file has no name");
  CHECK(problem(parseTrain({"--metrics", ""})) == "--metrics: the file has no name");
  CHECK_THAT(problem(parseTrain({"--xyzzy"})), StartsWith("--xyzzy: no such option; see psd-trainer train"));
  CHECK_THAT(problem(parseTrain({"stray"})), StartsWith("'stray' is not expected; see psd-trainer train"));
  CHECK(problem(parseTrain({"tcp://h:1"})) ==
        "'tcp://h:1' is not expected; did you mean 'psd-trainer train --server tcp://h:1'?");
  CHECK(problem(parse({"version"})) == "'version': no such command; did you mean 'psd-trainer --version'?");
  CHECK(problem(parse({"-V"})) == "-V: no such option; did you mean 'psd-trainer --version'?");
  CHECK(problem(parse({"evla", "--data", "d"})) == "'evla': no such command; did you mean eval?");
  CHECK(problem(parse({"evla"})) == "'evla': no such command; did you mean eval?");
  CHECK(problem(parse({"pull"})) == "'pull': no such command; see psd-trainer --help");
  CHECK_THAT(problem(parseTrain({"--rank"})), Contains("--rank"));
  CHECK_THAT(problem(parse({"train", "--sever", "tcp://h"})), Contains("did you mean --server?"));
  CHECK_THAT(problem(parse({"train", "--server", "tcp://h"})), StartsWith("--data is missing"));
  CHECK(std::get<TrainCommand>(*parse({"train", "--data", "d"})).common.client.servers ==
        std::vector<std::string>{"tcp://localhost:5500"});
  CHECK(
      problem(parse({})) ==
      "a command is missing, as in 'psd-trainer train --data synthetic --model mlp'; see psd-trainer --help");
  CHECK_THAT(problem(parseTrain({"--steps", "1", "--epochs", "1"})), Contains("exclude each other"));
  CHECK_THAT(problem(parseTrain({"--steps", "0"})), StartsWith("--steps: '0' is not"));
  CHECK_THAT(problem(parseTrain({"--epochs", "1.5"})), StartsWith("--epochs: '1.5' is not"));
  CHECK_THAT(problem(parseTrain({"--batch-size", "x"})), StartsWith("--batch-size: 'x' is not"));
  CHECK_THAT(problem(parseTrain({"--batch-size", "auto"})),
             StartsWith("--batch-size auto needs --data-plan dynamic"));
  const auto sized = [&](const char* size) {
    return problem(parseTrain({"--data-plan", "dynamic", "--batch-size", size}));
  };
  CHECK_THAT(sized("auto:0"), StartsWith("--batch-size auto: '0' is not"));
  CHECK_THAT(sized("auto:"), StartsWith("--batch-size auto: '' is not"));
  CHECK_THAT(sized("automatic"), StartsWith("--batch-size: 'automatic' is not"));
  CHECK_THAT(problem(parseTrain({"--inflight", "65"})), StartsWith("--inflight: '65' is not"));
  CHECK_THAT(problem(parseTrain({"--seed", "-1"})), StartsWith("--seed: '-1' is not"));
  CHECK_THAT(problem(parseTrain({"--threads", "0"})), StartsWith("--threads: '0' is not"));
  CHECK_THAT(problem(parseTrain({"--connect-timeout", "soon"})),
             StartsWith("--connect-timeout: 'soon' is not"));
  CHECK_THAT(problem(parseTrain({"--data-plan", "some"})), StartsWith("--data-plan: 'some' is not a plan"));
  CHECK_THAT(problem(parseTrain({"--data-plan", "dynamic", "--steps", "3"})),
             StartsWith("--steps and --data-plan dynamic exclude each other"));
  CHECK_THAT(problem(parseTrain({"--log-level", "loud"})), StartsWith("--log-level: 'loud' is not"));
}

TEST_CASE("a lean build has no trace of what it omits") {
  for (const char* const word : {"help", "man", "--help"}) {
    const auto text = parse({word}, {}, true);
    PSD_REQUIRE_OK(text);
    CHECK_THAT(std::get<PrintText>(*text).text,
               Contains("train") && !Contains("bench") && !Contains("bridge"));
  }
  for (const bool lean : {false, true}) {
    const auto text = parse({"help", "train"}, {}, lean);
    PSD_REQUIRE_OK(text);
    CHECK((std::get<PrintText>(*text).text.find("--execute") == std::string::npos) == lean);
  }
  CHECK(parse({"bench", "pull"}, {}, true).message() ==
        "'bench': no such command; this build (PSD_LEAN) lacks it; build the preset release");
  PSD_REQUIRE_OK(parse({"train", "--data", "d"}, {}, true));
}

}  // namespace psd::command_line_test

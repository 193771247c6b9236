#include "trainer/executor/program.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <spdlog/spdlog.h>

#include "common/cli/credential_flags.h"
#include "common/cli/output.h"
#include "common/cli/text_commands.h"
#include "common/cli/usage_error.h"
#include "common/config/json_file.h"
#include "common/config/overrides.h"
#include "common/log/log.h"
#include "common/os/env.h"
#include "common/text/text.h"
#include "trainer/executor/executor_config.h"
#include "trainer/executor/remote/executor_connection.h"
#include "trainer/executor/serve_command.h"
#include "trainer/executor/stages/execution.h"

namespace psd {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr std::array<std::string_view, 6> kLogLevels{"trace", "debug", "info", "warn", "error", "off"};
constexpr std::chrono::milliseconds kStatusTimeout{5'000};

constexpr const char* kExamples =
    "Example: psd-executor --server unix:///tmp/psd.sock --module mnist_cnn\n"
    "         psd-trainer train --execute tcp://localhost:5600 --data synthetic\n\n"
    "docs/guides/executor.md documents every key of the configuration.\n\n"
    "Exit status: 0 ended by a signal, 1 failed, 2 invalid command line or configuration.";

int report(const Status& status) {
  if (status.ok()) return 0;
  printLastLine("psd-executor: " + oneLine(status.message(), kMessageBytesMax));
  return status.error().code == ErrorCode::invalidArgument ? kExitUsage : kExitFailed;
}

/// The command line.
struct Flags {
  std::string config;
  std::vector<std::string> servers, listen, assignments;
  std::optional<std::string> module, device;
  std::string portFile, logLevel = "info", executor = "tcp://localhost:5600";
  CredentialFlags credentials;

  void addConfigTo(CLI::App& app) {
    app.add_option("--config", config, "Configuration file (JSON, comments allowed)")->type_name("FILE");
    app.add_option("--server", servers,
                   "The daemon, instead of the file's; several, repeated or comma-separated: the first that "
                   "answers")
        ->type_name("ADDRESS")
        ->delimiter(',')
        ->allow_extra_args(false);
    app.add_option("--listen", listen,
                   "Address to listen on, of this machine, instead of the file's; repeatable")
        ->type_name("ADDRESS")
        ->expected(1)
        ->take_all();
    app.add_option("--module", module,
                   "What to execute, instead of the file's: " + joined(kExecutableModels, ", ") + ", FILE.pt")
        ->type_name("MODEL");
    app.add_option("--device", device,
                   "Device of the module, or of its first stage, instead of the file's: auto | cpu | cuda:N")
        ->type_name("DEVICE");
    app.add_option("--set", assignments, "Any key, as in --set workers=4; repeatable")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->take_all();
  }
};

Overrides overridesOf(const Flags& flags) {
  Overrides all;
  for (const std::string& assignment : flags.assignments) all.addAssignment(assignment);
  const auto addText = [&all](const std::string& flag, const std::string& value, const std::string& key) {
    all.add(flag, value, key, [key](nlohmann::ordered_json& document, const std::string& text) {
      document[key] = text;
      return Status();
    });
  };
  const auto addList = [&all](const std::string& flag, const std::vector<std::string>& values,
                              const std::string& key) {
    for (size_t i = 0; i < values.size(); i++) {
      all.add(flag, values[i], key + "[" + std::to_string(i) + "]",
              [i, key](nlohmann::ordered_json& document, const std::string& text) {
                if (i == 0) document[key] = nlohmann::ordered_json::array();
                document[key].push_back(text);
                return Status();
              });
    }
  };
  addList("--server", flags.servers, "server");
  addList("--listen", flags.listen, "listen");
  if (flags.module) addText("--module", *flags.module, "module");
  if (flags.device) addText("--device", *flags.device, "device");
  return all;
}

/// The configuration from file and flags. `effective` becomes the complete configuration.
Result<ExecutorConfig> loadConfig(const Flags& flags, nlohmann::ordered_json& effective) {
  effective = nlohmann::ordered_json::object();
  if (!flags.config.empty()) {
    const std::unique_ptr<Env> env = makePosixEnv();
    PSD_ASSIGN_OR_RETURN(effective, readJsonFile(*env, flags.config));
  }
  const Overrides overrides = overridesOf(flags);
  const nlohmann::ordered_json document = effective;
  PSD_RETURN_IF_ERROR(overrides.apply(effective));
  auto config = readExecutorConfig(effective);
  if (config.ok()) return config;
  const auto read = [](nlohmann::ordered_json other) { return readExecutorConfig(other).status(); };
  return Error{config.error().code,
               overrides.origin(config.message(), document, flags.config, read) + config.message()};
}

const char* environment(const char* name) { return std::getenv(name); }

Status serve(const Flags& flags) {
  if (std::ranges::find(kLogLevels, flags.logLevel) == kLogLevels.end()) {
    return {ErrorCode::invalidArgument, "--log-level: '" + printable(flags.logLevel) +
                                            "' is not a level; expected " + joined(kLogLevels, ", ")};
  }
  nlohmann::ordered_json effective;
  PSD_ASSIGN_OR_RETURN(const ExecutorConfig config, loadConfig(flags, effective));
  PSD_RETURN_IF_ERROR(initLogging({.level = flags.logLevel}));
  PSD_ASSIGN_OR_RETURN(const Credentials credentials, readCredentials(flags.credentials, environment));
  ClientOptions daemon;
  daemon.servers = config.servers;
  daemon.token = credentials.token;
  daemon.tls = credentials.tls;
  daemon.connectTimeout = config.connectTimeout;
  if (const std::string warning = tokenInTheClear(daemon.token, daemon.servers); !warning.empty()) {
    spdlog::warn("{}", warning);
  }
  return serveExecutor(config, daemon, flags.portFile);
}

Status printStatus(const Flags& flags) {
  PSD_ASSIGN_OR_RETURN(const Credentials credentials, readCredentials(flags.credentials, environment));
  PSD_ASSIGN_OR_RETURN(const auto peer, ExecutorConnection::connect(flags.executor, kStatusTimeout,
                                                                    "psd-executor status", credentials.tls));
  PSD_ASSIGN_OR_RETURN(const std::string text, peer->status());
  PSD_ASSIGN_OR_RETURN(const nlohmann::ordered_json json, parseJson(text, "the executor's status"));
  std::cout << jsonText(json, 2) << std::endl;
  return {};
}

Status check(const Flags& flags) {
  nlohmann::ordered_json effective;
  PSD_ASSIGN_OR_RETURN(const ExecutorConfig config, loadConfig(flags, effective));
  PSD_RETURN_IF_ERROR(initLogging({.level = "warn"}));
  PSD_RETURN_IF_ERROR(checkExecutor(config));
  std::cout << jsonText(effective, 2) << std::endl;
  return {};
}

}  // namespace

int runExecutor(int argc, const char* const* argv) {
  CLI::App app(
      "psd-executor, forward and backward passes for trainers over a psd daemon's parameters. Without a "
      "subcommand it "
      "serves.",
      "psd-executor");
  app.set_version_flag("--version", "psd-executor " PSD_VERSION);
  app.require_subcommand(0, 1);
  app.footer(kExamples);
  Flags flags, checked, asked;
  flags.addConfigTo(app);
  addCredentialFlags(app, flags.credentials);
  app.add_option("--port-file", flags.portFile,
                 "Write the TCP port here once the executor accepts connections")
      ->type_name("FILE");
  app.add_option("--log-level", flags.logLevel, "trace | debug | info | warn | error | off")
      ->type_name("LEVEL")
      ->capture_default_str();
  CLI::App* checkCommand =
      app.add_subcommand("check", "Validate a configuration and print it with all defaults");
  checked.addConfigTo(*checkCommand);
  CLI::App* statusCommand = app.add_subcommand("status", "Print the state of a running executor as JSON");
  statusCommand->add_option("--executor", asked.executor, "Its address")
      ->type_name("ADDRESS")
      ->capture_default_str();
  addCredentialFlags(*statusCommand, asked.credentials);
  const TextCommands texts(app, [] {
    return CompletionWords{.ofOption = {{"--log-level", {kLogLevels.begin(), kLogLevels.end()}},
                                        {"--device", {"auto", "cpu", "cuda:0"}},
                                        {"--module", {kExecutableModels.begin(), kExecutableModels.end()}}},
                           .ofKey = {},
                           .paths = {"--module"}};
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(usageError(error, app));
  }
  if (const Status placed = checkOptionsPlaced(app); !placed.ok()) return report(placed);
  if (auto text = texts.run()) {
    if (text->ok()) std::cout << **text;
    return report(text->ok() ? finishOutput() : text->status());
  }
  if (*checkCommand || *statusCommand) {
    const Status done = *checkCommand ? check(checked) : printStatus(asked);
    return report(done.ok() ? finishOutput() : done);
  }
  return report(serve(flags));
}

}  // namespace psd

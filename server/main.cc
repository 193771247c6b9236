#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/cli/output.h"
#include "common/cli/setting.h"
#include "common/cli/text_commands.h"
#include "common/cli/usage_error.h"
#include "common/log/log.h"
#include "common/os/end_by_signal.h"
#include "common/text/text.h"
#include "server/config/config_schema.h"
#include "server/daemon/daemon.h"
#include "server/policy/aggregator/aggregator.h"
#include "server/policy/policy_config.h"
#include "server/status/top_table.h"
#include "server/tools/doctor_command.h"
#include "server/tools/file_commands.h"
#include "server/tools/follow_command.h"
#include "server/tools/inspect_command.h"
#include "server/tools/live_commands.h"
#include "server/tools/operator_commands.h"
#include "server/tools/operator_watch.h"
#include "server/tools/placement_command.h"
#include "server/tools/repartition_command.h"
#include "server/tools/token_command.h"

namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr int kExitNoAnswer = 3;
constexpr uint64_t kUpdateMax = 1ull << 40, kVersionMax = UINT64_MAX;

const psd::CommandHints kServeHints = {{"serve", "omit it, as in 'psd --config FILE'"},
                                       {"start", "omit it, as in 'psd --config FILE'"},
                                       {"run", "omit it, as in 'psd --config FILE'"}};

/// The flags that choose and change a configuration; `psd` and `psd check` share them.
struct ConfigFlags {
  std::string file;
  psd::ConfigOverrides overrides;

  void addTo(CLI::App& app) {
    app.add_option("--listen", overrides.listen, "Address to listen on, instead of the file's; repeatable")
        ->type_name("ADDRESS")
        ->expected(1)
        ->take_all();
    app.add_flag("--insecure", overrides.insecure,
                 "Let other machines connect without authentication; only on a trusted network");
    app.add_option("--device", overrides.device, "auto, cpu or cuda:N, instead of the file's")
        ->type_name("DEVICE");
    app.add_option("--replica-of", overrides.replicaOf,
                   "Copy and serve the published versions of these daemons, one of which is followed")
        ->type_name("ADDRESS[,ADDRESS]…");
    app.add_option("--index", overrides.index, "Which of the configuration's `daemons` this one is, from 0")
        ->type_name("N");
    app.add_option("--set", overrides.assignments, "Set any key, as in --set policy.type=locked; repeatable")
        ->type_name("KEY=VALUE")
        ->expected(1)
        ->take_all();
  }
};

/// The flags of `psd check`.
struct CheckFlags : ConfigFlags {
  CLI::App* command;
  bool schema = false;

  explicit CheckFlags(CLI::App& app)
      : command(app.add_subcommand("check", "Validate a configuration and print it with all defaults")) {
    command->add_option("file,--config", file, "Configuration file; without one, the defaults")
        ->type_name("FILE");
    addTo(*command);
    CLI::Option* const printed =
        command->add_flag("--schema", schema, "Print the JSON Schema of configurations, for editors");
    for (CLI::Option* const other : command->get_options()) {
      if (other != printed && other != command->get_help_ptr()) printed->excludes(other);
    }
    command->footer("Example: psd check configs/hogwild.json --set optimizer.lr=0.05\n\npolicy.type:\n" +
                    psd::policyHelp() + "policy.aggregator.type, of sync, local_sgd and diloco:\n" +
                    psd::aggregatorHelp());
  }
};

/// The flags of the daemon.
struct ServeFlags : ConfigFlags {
  std::vector<std::string> http;
  std::string portFile;

  explicit ServeFlags(CLI::App& app) {
    app.add_option("--config", file, "Configuration file (JSON, comments allowed)")->type_name("FILE");
    addTo(app);
    app.add_option("--http", http,
                   std::string("Serve a page and an API over HTTP; without an address, on ") +
                       psd::kDefaultHttpAddress)
        ->type_name("[ADDRESS]")
        ->expected(0, 1);
    app.add_option("--port-file", portFile, "Write the TCP port here once the daemon accepts connections")
        ->type_name("FILE");
  }

  /// Call it after the command line was parsed.
  void settle(const CLI::App& app) {
    if (app.count("--http") == 0) return;
    const bool named = !http.empty() && !http.front().empty();
    overrides.http = named ? http.front() : psd::kDefaultHttpAddress;
  }
};

/// The flags of `psd export`, `psd inspect` and `psd replay`.
struct FileFlags {
  CLI::App *exporting, *inspecting, *replaying;
  std::string path, to, table, map;
  std::optional<std::string> format;
  std::optional<std::string> until, published;
  std::vector<std::string> without, only;  ///< "rank=3"
  std::optional<std::string> blame;
  bool json = false;        ///< of `inspecting`
  psd::ServerFlags server;  ///< of `exporting`

  explicit FileFlags(CLI::App& app)
      : exporting(app.add_subcommand("export", "Write a model as a safetensors file, or one of its tables")),
        inspecting(app.add_subcommand("inspect", "Show and verify what a daemon has saved")),
        replaying(app.add_subcommand("replay", "Rebuild the model as it was after any update")),
        server(*exporting, "600", "") {
    exporting
        ->add_option(
            "checkpoint", path,
            "A checkpoint, or a folder of them: the newest complete one. With --server, the file to write")
        ->type_name("PATH");
    exporting->add_option("--to", to, "The file to write")->type_name("FILE");
    exporting
        ->add_option("--published", published,
                     "With --server: published version N instead of the current values; 0: the newest")
        ->type_name("N");
    exporting
        ->add_option("--map", map,
                     "With --published: rename, slice and concatenate tensors as this JSON file says")
        ->type_name("FILE");
    exporting->add_option("--table", table, "Keys and values of one embedding table instead of the tensors")
        ->type_name("NAME");
    exporting
        ->add_option(
            "--format", format,
            "With --table: safetensors, csv, or libsvm, which has only the values that are not zero; "
            "default: safetensors")
        ->type_name("FORMAT");
    inspecting
        ->add_option("path", path,
                     "A checkpoint, a folder of them, a log segment, a safetensors file, or one of psd "
                     "follow --shared")
        ->required()
        ->type_name("PATH");
    inspecting->add_flag("--json", json, "One JSON document, for programs");
    replaying->add_option("log", path, "durability.path: the folder with checkpoints and log")
        ->required()
        ->type_name("FOLDER");
    replaying->add_option("--until", until, "The last update of each shard to apply; default: all")
        ->type_name("N");
    replaying->add_option("--to", to, "The safetensors file to write")->type_name("FILE");
    replaying
        ->add_option("--without", without, "Leave out the updates of a trainer, as in rank=3; repeatable")
        ->type_name("rank=R")
        ->expected(1)
        ->take_all();
    replaying->add_option("--only", only, "Apply only the updates of this trainer; repeatable")
        ->type_name("rank=R")
        ->expected(1)
        ->take_all();
    replaying->add_option("--blame", blame, "Write which updates moved each tensor most, as JSON")
        ->type_name("FILE");
  }

  /// Runs the selected command and returns its outcome; nullopt if none of these was selected.
  std::optional<psd::Status> run(psd::Env& env) const {
    if (*exporting) return exportFrom(env);
    if (*inspecting) return psd::inspect(env, path, json);
    if (*replaying) return replay(env);
    return {};
  }

 private:
  psd::Status exportFrom(psd::Env& env) const {
    const auto wrong = [](const char* what) {
      return psd::Status(
          psd::ErrorCode::invalidArgument,
          std::string(what) + ": psd export CHECKPOINT --to FILE, or psd export --server ADDRESS FILE");
    };
    if (!map.empty() && !published) return wrong("--map requires --published");
    if (format && table.empty()) return wrong("--format requires --table");
    if (!server.given()) {
      if (published) return wrong("--published requires --server");
      if (path.empty() || to.empty()) return wrong("a checkpoint and --to are needed");
      PSD_ASSIGN_OR_RETURN(const psd::TableFormat chosen, psd::readTableFormat(format));
      return psd::exportModel(env, path, table, to, chosen);
    }
    if (!table.empty()) return wrong("--table requires a checkpoint, not --server");
    if (path.empty() == to.empty()) return wrong("with --server one file is needed");
    PSD_ASSIGN_OR_RETURN(const psd::DaemonCall call, server.call());
    const std::string& file = to.empty() ? path : to;
    if (!published) return psd::withAdvice(psd::exportServer(env, call, file), call);
    PSD_ASSIGN_OR_RETURN(const uint64_t number,
                         psd::parseInteger({"--published", *published}, 0, kVersionMax));
    return psd::withAdvice(psd::exportVersion(env, call, number, map, file), call);
  }
  psd::Status replay(psd::Env& env) const {
    std::optional<uint64_t> last;
    if (until) {
      PSD_ASSIGN_OR_RETURN(last, psd::parseInteger({"--until", *until}, 0, kUpdateMax));
    }
    PSD_ASSIGN_OR_RETURN(const psd::ReplayChoice choice, psd::readReplayChoice(without, only));
    if (blame && blame->empty()) return {psd::ErrorCode::invalidArgument, "--blame: the file has no name"};
    if (choice.everything() && !blame) return psd::replay(env, path, last, to);
    return psd::replayChosen(env, path, last, to, choice, blame.value_or(""));
  }
};

/// The flags of `psd status`, `psd reload` and `psd stop`.
struct OperatorFlags {
  struct Call {
    CLI::App* command;
    std::unique_ptr<psd::ServerFlags> server;

    Call(CLI::App* of, const std::string& seconds)
        : command(of), server(std::make_unique<psd::ServerFlags>(*of, seconds)) {}
  };
  Call status, reload, stop;
  bool json = false, hot = false, watch = false, here = false, discard = false, dryRun = false;
  std::string count = "0";

  explicit OperatorFlags(CLI::App& app)
      : status{app.add_subcommand("status", "Show the state of a running daemon"), "5"},
        reload{app.add_subcommand("reload",
                                  "Make a running daemon reread its configuration, while trainers work"),
               "60"},
        stop{app.add_subcommand("stop", "Stop a running daemon; returns when everything is saved"), "120"} {
    status.command->add_flag("--json", json, "The full status as JSON, for programs");
    status.command->add_flag("--here", here,
                             "Only the daemon at --server, not all that serve the model; implied by --hot");
    CLI::Option* const watching = status.command->add_flag("--watch", watch, "Refresh every second");
    status.command->add_option("--count", count, "End after N refreshes; 0: no limit")
        ->needs(watching)
        ->capture_default_str()
        ->type_name("N");
    status.command->add_flag("--hot", hot,
                             "Show the ten rows of each embedding table with the most updates instead");
    reload.command->add_flag("--dry-run", dryRun,
                             "Print what would change or needs a restart, without applying it");
    stop.command->add_flag("--discard", discard, "Stop even if the model is not saved; it is lost");
  }

  /// Runs the selected command and returns its outcome; nullopt if none of these was selected.
  std::optional<psd::Status> run() const {
    using psd::DaemonCall;
    if (*status.command) {
      return calling(status, [this](const DaemonCall& call) {
        return watch ? watchOn(call)
               : hot ? psd::printHotRows(call, json)
                     : psd::printStatus(call, json, here);
      });
    }
    if (*reload.command) return calling(reload, dryRun ? psd::showReload : psd::reloadServer);
    if (*stop.command) {
      return calling(stop, [this](const DaemonCall& call) { return psd::stopServer(call, discard); });
    }
    return {};
  }

 private:
  psd::Status watchOn(const psd::DaemonCall& call) const {
    if (json || hot)
      return {psd::ErrorCode::invalidArgument, "--watch cannot be combined with --json or --hot"};
    PSD_ASSIGN_OR_RETURN(const uint64_t most, psd::parseCount(count));
    return psd::watchStatus(call, {most, here});
  }
  template <class Command>
  static psd::Status calling(const Call& call, Command command) {
    PSD_ASSIGN_OR_RETURN(const psd::DaemonCall daemon, call.server->call());
    return psd::withAdvice(command(daemon), daemon);
  }
};

/// The flags of `psd token`.
struct TokenFlags {
  CLI::App *token, *making, *listing, *revoking;
  std::string name, role, file;
  std::optional<std::string> expires;

  explicit TokenFlags(CLI::App& app)
      : token(app.add_subcommand("token", "Create, list and revoke access tokens")),
        making(token->add_subcommand("new",
                                     "Print a new token, once, and its line for the daemon's auth.tokens")),
        listing(token->add_subcommand("list", "Show the tokens of a file: names, roles, expiry")),
        revoking(token->add_subcommand(
            "revoke", "Remove all tokens of NAME from the file; takes effect after psd reload")) {
    token->require_subcommand(1);
    making->add_option("--name", name, "The name of the token's owner")->required()->type_name("NAME");
    making
        ->add_option("--role", role,
                     "reader, publisher, trainer or admin; each includes reader, and admin all")
        ->required()
        ->type_name("ROLE");
    making->add_option("--expires", expires, "Lifetime, such as 12h, 30d or 8w")->type_name("TIME");
    making->add_option("--file", file, "Append the line to this file instead of printing it")
        ->type_name("FILE");
    revoking->add_option("name", name, "The name of the tokens' owner")->required()->type_name("NAME");
    for (CLI::App* const command : {listing, revoking}) {
      command->add_option("--file", file, "The file that the daemon's auth.tokens names")
          ->required()
          ->type_name("FILE");
    }
  }

  /// Runs the command and returns its outcome; nullopt if it was not selected.
  std::optional<psd::Status> run() const {
    if (*making) return psd::newToken(name, role, file, expires);
    if (*listing) return psd::listTokens(file);
    if (*revoking) return psd::revokeTokens(file, name);
    return {};
  }
};

/// The flags of `psd doctor`.
struct DoctorFlags : ConfigFlags {
  CLI::App* command;
  bool json = false;
  psd::ServerFlags server;

  explicit DoctorFlags(CLI::App& app)
      : command(app.add_subcommand("doctor", "Diagnose this machine, or a running daemon")),
        server(*command, "5", "") {
    command->add_option("--config", file, "Configuration file; without one, the defaults")->type_name("FILE");
    command->add_flag("--json", json, "One JSON document, for programs");
    addTo(*command);
  }

  /// Runs the command and returns its outcome; nullopt if it was not selected.
  std::optional<psd::Status> run(psd::Env& env) const {
    if (!*command) return {};
    return server.given() ? onDaemon() : beforeRun(env);
  }

 private:
  psd::Status onDaemon() const {
    for (const char* const name : {"--config", "--listen", "--insecure", "--device", "--index", "--set"}) {
      if (command->count(name) == 0) continue;
      return {psd::ErrorCode::invalidArgument, std::string(name) + ": cannot be combined with --server"};
    }
    PSD_ASSIGN_OR_RETURN(const psd::DaemonCall call, server.call());
    return psd::withAdvice(psd::examineDaemon(call, json), call);
  }
  psd::Status beforeRun(psd::Env& env) const {
    PSD_ASSIGN_OR_RETURN(const psd::LoadedConfig loaded, psd::loadDaemonConfig(env, file, overrides));
    return psd::examineHost(env, loaded, json);
  }
};

/// The flags of `psd placement`.
struct PlacementFlags {
  CLI::App* placing;
  std::string path, daemons;
  bool json = false;

  explicit PlacementFlags(CLI::App& app)
      : placing(app.add_subcommand("placement",
                                   "Show which part of a model each of several daemons would serve")) {
    placing->add_option("model", path, "A safetensors file, a checkpoint, or a folder of them")
        ->required()
        ->type_name("PATH");
    placing->add_option("--daemons", daemons, "Number of daemons that would serve it")
        ->required()
        ->type_name("N");
    placing->add_flag("--json", json, "One JSON document, for programs");
  }

  /// Runs the command and returns its outcome; nullopt if it was not selected.
  std::optional<psd::Status> run(psd::Env& env) const {
    if (!*placing) return {};
    const auto count = psd::parseInteger({"--daemons", daemons}, 1, psd::kPartitionsMax);
    if (!count.ok()) return count.status();
    return psd::printPlacement(env, path, static_cast<uint32_t>(*count), json);
  }
};

/// The flags of `psd repartition`.
struct RepartitionFlags {
  CLI::App* dividing;
  std::vector<std::string> folders;
  std::string daemons, to;
  std::optional<std::string> published;
  bool together = false;

  explicit RepartitionFlags(CLI::App& app)
      : dividing(app.add_subcommand(
            "repartition", "Divide what a model's daemons have saved among another number of daemons")) {
    dividing->add_option("folders", folders, "durability.path of each current daemon; none may be running")
        ->required()
        ->type_name("FOLDER...");
    dividing->add_option("--daemons", daemons, "Number of new daemons")->required()->type_name("N");
    dividing->add_option("--to", to, "A new folder for their durability.path: partition-0, partition-1, ...")
        ->required()
        ->type_name("FOLDER");
    dividing->add_flag("--whole", together,
                       "Use the checkpoint of the whole model that psd checkpoint made, not the newest one "
                       "of each daemon");
    dividing
        ->add_option("--published", published,
                     "Use the model as it was at published version N, from checkpoints and log; also for the "
                     "same number of daemons")
        ->type_name("N");
  }

  /// Runs the command and returns its outcome; nullopt if it was not selected.
  std::optional<psd::Status> run(psd::Env& env) const {
    if (!*dividing) return {};
    const auto count = psd::parseInteger({"--daemons", daemons}, 1, psd::kPartitionsMax);
    if (!count.ok()) return count.status();
    std::optional<uint64_t> version;
    if (published && together) {
      return psd::Status(psd::ErrorCode::invalidArgument,
                         "--whole and --published name two states: give one of them");
    }
    if (published) {
      PSD_ASSIGN_OR_RETURN(version, psd::parseInteger({"--published", *published}, 1, kVersionMax));
    }
    return psd::repartitionFolders(env, folders, static_cast<uint32_t>(*count), to, together, version);
  }
};

/// An example of each command that sets no footer itself; a group's is that of its first command.
constexpr std::pair<const char*, const char*> kExampleOf[] = {
    {"status", "psd status --server tcp://node7:5500"},
    {"reload", "psd reload --dry-run"},
    {"stop", "psd stop --server unix:///run/psd/psd.sock"},
    {"top", "psd top --sort staleness"},
    {"events", "psd events --follow"},
    {"checkpoint", "psd checkpoint --server tcp://node7:5500"},
    {"publish", "psd publish --server tcp://node7:5500"},
    {"versions", "psd versions --json"},
    {"rollback", "psd rollback 12 --server tcp://node7:5500"},
    {"follow", "psd follow --server tcp://node7:5500 --into /srv/model --exec 'systemctl reload engine'"},
    {"set", "psd set optimizer.lr=0.05"},
    {"switch", "psd switch --server tcp://node7:5500,tcp://node8:5500"},
    {"recover", "psd recover --server tcp://node8:5500"},
    {"move", "psd move --server tcp://node7:5500 --to tcp://node9:5500"},
    {"trainer remove", "psd trainer remove 3"},
    {"export", "psd export --server tcp://node7:5500 model.safetensors"},
    {"inspect", "psd inspect /var/lib/psd/saved"},
    {"replay", "psd replay /var/lib/psd/saved --until 5000 --to model.safetensors"},
    {"placement", "psd placement model.safetensors --daemons 3"},
    {"repartition", "psd repartition saved-0 saved-1 --daemons 3 --to divided"},
    {"token new", "psd token new --name ops --role admin --expires 30d --file tokens"},
    {"token list", "psd token list --file tokens"},
    {"token revoke", "psd token revoke ops --file tokens"},
    {"doctor", "psd doctor --config configs/durable.json"}};

void addExamples(CLI::App& app) {
  for (const auto& [words, example] : kExampleOf) {
    CLI::App* command = &app;
    std::istringstream names(words);
    for (std::string name; names >> name;) command = command->get_subcommand(name);
    command->footer(std::string("Example: ") + example);
  }
  for (CLI::App* const group : app.get_subcommands({})) {
    if (const auto commands = group->get_subcommands({}); !commands.empty())
      group->footer(commands.front()->get_footer());
  }
}

constexpr const char* kExamples =
    "Example: psd --config configs/hogwild.json\n"
    "         psd status\n\n"
    "Without a configuration it listens on tcp://localhost:5500, the default address of the commands and\n"
    "of psd-trainer. docs/reference/configuration.md documents every key, docs/guides/operations.md how\n"
    "to run it; 'psd help COMMAND' explains a command, 'man psd' all of them if psd is installed.\n\n"
    "Exit status: 0 success, 1 failure, 2 an invalid command line or configuration, 3 no answer within\n"
    "--timeout, or a timeout in the daemon itself.";

psd::CompletionWords completionWords() {
  psd::CompletionWords words{
      .ofOption = {{"--device", {"auto", "cpu", "cuda:0"}}, {"--role", {"reader", "trainer", "admin"}}},
      .ofKey = {}};
  for (const std::string_view key : psd::topSortKeys()) words.ofOption["--sort"].emplace_back(key);
  for (const psd::SettableKey& key : psd::settableKeys()) {
    words.ofOption["--set"].push_back(key.path + "=");
    if (key.live) words.ofOption["assignment"].push_back(key.path + "=");  // of psd set
    if (!key.choices.empty()) words.ofKey[key.path] = key.choices;
  }
  return words;
}

/// Rereads the configuration of a running daemon. Refuses pipes: their content is gone, and a FIFO would
/// block until someone writes to it.
psd::Result<psd::LoadedConfig> reread(psd::Env& env, const ConfigFlags& flags) {
  std::error_code error;
  if (std::filesystem::is_other(flags.file, error)) {
    return psd::Error{psd::ErrorCode::invalidArgument,
                      flags.file + ": is not a regular file, and cannot be read a second time"};
  }
  return psd::loadDaemonConfig(env, flags.file, flags.overrides);
}

int report(const psd::Status& status) {
  if (status.ok()) return 0;
  psd::printLastLine("psd: " + psd::oneLine(status.message(), psd::kMessageBytesMax));
  if (status.error().code == psd::ErrorCode::deadlineExceeded) return kExitNoAnswer;
  return status.error().code == psd::ErrorCode::invalidArgument ? kExitUsage : kExitFailure;
}

int run(int argc, char** argv) {
  CLI::App app("psd, a parameter server for machine learning. Without a subcommand it serves.", "psd");
  app.set_version_flag("--version", "psd " PSD_VERSION);
  app.require_subcommand(0, 1);

  ServeFlags serve(app);
  const CheckFlags check(app);
  const OperatorFlags operators(app);
  const psd::LiveCommands live(app);
  const FileFlags files(app);
  const PlacementFlags placements(app);
  const RepartitionFlags divisions(app);
  const TokenFlags tokens(app);
  const DoctorFlags doctor(app);
  addExamples(app);

  psd::groupOptions(app, {{"The daemon to call",
                           {"--server", "--timeout", "--token-file", "--tls-ca", "--tls-cert", "--tls-key"}},
                          {"Overrides of the configuration",
                           {"--listen", "--http", "--insecure", "--device", "--index", "--set"}}});
  const psd::TextCommands texts(app, completionWords);
  app.footer(kExamples);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return report(psd::usageError(error, app, kServeHints));
  }
  serve.settle(app);
  if (const psd::Status placed = psd::checkOptionsPlaced(app); !placed.ok()) return report(placed);

  if (auto text = texts.run()) {
    if (text->ok()) std::fputs((*text)->c_str(), stdout);
    return report(text->status());
  }
  if (check.schema) {
    psd::printSchema();
    return 0;
  }
  if (auto outcome = operators.run()) return report(*outcome);
  if (auto outcome = live.run()) return report(*outcome);
  if (auto outcome = tokens.run()) return report(*outcome);
  auto env = psd::makePosixEnv();
  if (auto outcome = files.run(*env)) return report(*outcome);
  if (auto outcome = doctor.run(*env)) return report(*outcome);
  if (auto outcome = placements.run(*env)) return report(*outcome);
  if (auto outcome = divisions.run(*env)) return report(*outcome);
  const ConfigFlags& chosen = *check.command ? static_cast<const ConfigFlags&>(check) : serve;
  auto loaded = psd::loadDaemonConfig(*env, chosen.file, chosen.overrides);
  if (!loaded.ok()) return report(loaded.status());
  if (*check.command) {
    psd::printConfig(*loaded);
    return 0;
  }
  return report(psd::runDaemon(
      *loaded, [&] { return reread(*env, serve); }, serve.portFile, *env));
}

}  // namespace

int main(int argc, char** argv) {
  psd::endBySignals();
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding the file size limit then fails the write instead
  const int status = run(argc, argv);
  return status == 0 ? report(psd::finishOutput()) : status;
}

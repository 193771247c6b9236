#include "server/tools/live_commands.h"

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "common/cli/credential_flags.h"
#include "common/cli/setting.h"
#include "common/text/text.h"
#include "server/status/top_table.h"
#include "server/tools/follow_command.h"
#include "server/tools/move_command.h"
#include "server/tools/operator_watch.h"

namespace psd {
namespace {

constexpr double kLiveTimeoutSecondsMax = 86'400;
constexpr uint64_t kCountMax = 1'000'000;

}  // namespace

ServerFlags::ServerFlags(CLI::App& command, const std::string& seconds, const std::string& server)
    : seconds_(seconds) {
  if (!server.empty()) servers_.push_back(server);
  auto* const option =
      command
          .add_option("--server", servers_,
                      "The daemon's address; of several, separated by commas, the first that answers")
          ->delimiter(',')
          ->allow_extra_args(false)  // the next argument belongs to the command
          ->type_name("ADDRESS");
  if (!server.empty()) option->capture_default_str()->envname("PSD_SERVER");
  CLI::Option* const timeout =
      command.add_option("--timeout", seconds_, "How long to wait for the daemon's answer")
          ->capture_default_str()
          ->type_name("SECONDS");
  if (server.empty()) timeout->needs(option);
  addCredentialFlags(command, credentials_);
  for (const char* const name : {"--token-file", "--tls-ca", "--tls-cert", "--tls-key"}) {
    CLI::Option* const flag = command.get_option(name);
    std::string text = flag->get_description();  // a sentence, as the others of psd
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    flag->description(text);
    if (server.empty()) flag->needs(option);
  }
}

Result<DaemonCall> ServerFlags::call() const {
  PSD_ASSIGN_OR_RETURN(const double seconds, parseSeconds({"--timeout", seconds_}, kLiveTimeoutSecondsMax));
  const std::chrono::duration<double> most(seconds);
  PSD_ASSIGN_OR_RETURN(Credentials credentials, readCredentials(credentials_, std::getenv));
  return DaemonCall{servers_, std::chrono::ceil<std::chrono::milliseconds>(most), std::move(credentials)};
}

Result<uint64_t> parseCount(const std::string& text) { return parseInteger({"--count", text}, 0, kCountMax); }

LiveCommands::Command LiveCommands::add(CLI::App& to, const std::string& name, const std::string& help,
                                        const std::string& seconds) {
  CLI::App* const app = to.add_subcommand(name, help);
  return {app, std::make_unique<ServerFlags>(*app, seconds)};
}

LiveCommands::LiveCommands(CLI::App& app) {
  top_ = add(app, "top", "Show the activity of a running daemon, refreshed every second", "5");
  top_.app->add_option("--count", count_, "End after N refreshes; 0: no limit")
      ->capture_default_str()
      ->type_name("N");
  top_.app
      ->add_option("--sort", sort_,
                   "Order of the trainers: " + joined(topSortKeys(), ", ") + "; all but rank largest first")
      ->capture_default_str()
      ->type_name("KEY");
  const auto addHere = [this](CLI::App& command) {
    command.add_flag("--here", here_, "Only the daemon at --server, not all that serve the model");
  };
  addHere(*top_.app);
  events_ = add(app, "events",
                "Show the events of a running daemon: joins and departures, reloads, checkpoints", "5");
  events_.app->add_flag("--follow", follow_, "Keep printing new events until the daemon ends");
  events_.app->add_flag("--json", json_, "One JSON object per line, for programs");
  addHere(*events_.app);
  checkpoint_ = add(app, "checkpoint",
                    "Make a running daemon take a checkpoint now; returns when it is complete", "600");
  addVersions(app);
  set_ = add(app, "set", "Change one key of a running daemon's configuration, until the next reload", "60");
  set_.app->add_option("assignment", assignment_, "For example optimizer.lr=0.05")
      ->required()
      ->type_name("KEY=VALUE");
  switch_ = add(app, "switch", "Make the standby of a running daemon the primary, and the daemon its standby",
                "10");
  recover_ =
      add(app, "recover",
          "Promote a daemon that waits for a dead primary with the state it has, whatever is lost", "60");
  move_ = add(app, "move", "Move the model to other daemons, more or fewer, while trainers work", "600");
  move_.app->add_option("--to", to_, "Any one of the new daemons, which have no model yet")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ADDRESS");
  move_.app->add_option("--patience", patience_, "How long to wait for trainers to quiesce")
      ->capture_default_str()
      ->type_name("SECONDS");
  CLI::App* const trainer = app.add_subcommand("trainer", "Act on one trainer of a running daemon");
  trainer->require_subcommand(1);
  remove_ = add(*trainer, "remove", "End a trainer's session; its process cannot rejoin", "5");
  remove_.app->add_option("rank", rank_, "The trainer's rank")->required()->type_name("RANK");
}

void LiveCommands::addVersions(CLI::App& app) {
  publish_ =
      add(app, "publish", "Make a running daemon publish a version now; returns when it exists", "600");
  versions_ =
      add(app, "versions", "Show the published versions of a running daemon, and who leases them", "5");
  versions_.app->add_flag("--json", json_, "One JSON document, for programs");
  rollback_ =
      add(app, "rollback", "Make the model that of a published version again, with its optimizer", "600");
  rollback_.app->add_option("version", version_, "The version's number, as psd versions lists it")
      ->required()
      ->type_name("VERSION");
  followed_ = add(app, "follow", "Keep a file with the newest published version of a running daemon", "5");
  followed_.app->add_option("--into", into_, "The folder of model.safetensors, which is replaced atomically")
      ->type_name("FOLDER");
  followed_.app
      ->add_option("--shared", shared_,
                   "Instead of --into: the shared-memory file, as in /dev/shm/model, for psd.SharedVersions")
      ->type_name("FILE");
  followed_.app->add_option("--map", map_, "Rename, slice and concatenate tensors as this JSON file says")
      ->type_name("FILE");
  followed_.app
      ->add_option("--exec", hook_,
                   "Run COMMAND with /bin/sh at the start and after each version; PSD_FILE, PSD_VERSION, "
                   "PSD_HISTORY and PSD_STEP are set")
      ->type_name("COMMAND");
  followed_.app->add_option("--exec-timeout", hookSeconds_, "Kill COMMAND after this time")
      ->capture_default_str()
      ->type_name("SECONDS");
  followed_.app
      ->add_option("--max-versions-behind", behind_,
                   "Use another address while the source of this replica has more newer versions")
      ->type_name("N");
  followed_.app
      ->add_option("--max-seconds-behind", behindSeconds_,
                   "Use another address once this replica had all versions of its source longer ago")
      ->type_name("SECONDS");
  followed_.app->add_flag("--once", once_, "End after one version");
}

Result<FreshnessBound> LiveCommands::parseBound() const {
  FreshnessBound bound;
  if (!behind_.empty()) {
    PSD_ASSIGN_OR_RETURN(bound.versions, parseInteger({"--max-versions-behind", behind_}, 0, UINT64_MAX));
  }
  if (!behindSeconds_.empty()) {
    PSD_ASSIGN_OR_RETURN(const double seconds, parseSeconds({"--max-seconds-behind", behindSeconds_},
                                                            kLiveTimeoutSecondsMax, Zero::allowed));
    bound.time = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
  }
  return bound;
}

std::optional<Status> LiveCommands::run() const {
  const auto calling = [](const Command& command, auto work) -> Status {
    PSD_ASSIGN_OR_RETURN(const DaemonCall call, command.server->call());
    return withAdvice(work(call), call);
  };
  if (*top_.app) {
    return calling(top_, [this](const DaemonCall& call) -> Status {
      PSD_ASSIGN_OR_RETURN(const uint64_t count, parseCount(count_));
      return watchTop(call, {count, here_, sort_});
    });
  }
  if (*events_.app) {
    return calling(events_, [this](const DaemonCall& call) {
      return printEvents(call, {.follow = follow_, .json = json_, .here = here_});
    });
  }
  if (*checkpoint_.app) return calling(checkpoint_, checkpointServer);
  if (*publish_.app) return calling(publish_, publishServer);
  if (*versions_.app) {
    return calling(versions_, [this](const DaemonCall& call) { return printVersions(call, json_); });
  }
  if (*rollback_.app) {
    return calling(rollback_, [this](const DaemonCall& call) -> Status {
      PSD_ASSIGN_OR_RETURN(const uint64_t number, parseInteger({"VERSION", version_}, 1, UINT64_MAX));
      return rollBackServer(call, number);
    });
  }
  if (*followed_.app) {
    return calling(followed_, [this](const DaemonCall& call) -> Status {
      PSD_ASSIGN_OR_RETURN(const double seconds,
                           parseSeconds({"--exec-timeout", hookSeconds_}, kLiveTimeoutSecondsMax));
      const auto timeout =
          std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
      PSD_ASSIGN_OR_RETURN(const FreshnessBound bound, parseBound());
      return psd::follow(*makePosixEnv(), call, {into_, shared_, map_, hook_, timeout, once_, bound});
    });
  }
  if (*set_.app) {
    return calling(set_, [this](const DaemonCall& call) { return setKeyOf(call, assignment_); });
  }
  if (*switch_.app) return calling(switch_, switchServer);
  if (*recover_.app) return calling(recover_, recoverServer);
  if (*move_.app) {
    return calling(move_, [this](const DaemonCall& call) -> Status {
      PSD_ASSIGN_OR_RETURN(const double seconds,
                           parseSeconds({"--patience", patience_}, kLiveTimeoutSecondsMax));
      const auto patience =
          std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
      return moveServer(call, to_, patience);
    });
  }
  if (*remove_.app) {
    return calling(remove_, [this](const DaemonCall& call) -> Status {
      PSD_ASSIGN_OR_RETURN(const uint64_t rank, parseInteger({"RANK", rank_}, 0, UINT32_MAX));
      return removeTrainerOf(call, Rank{static_cast<uint32_t>(rank)});
    });
  }
  return {};
}

}  // namespace psd

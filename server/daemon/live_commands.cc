#include "server/daemon/live_commands.h"

#include <chrono>
#include <cstdlib>
#include <utility>

#include "common/cli/credential_flags.h"
#include "common/cli/setting.h"
#include "server/daemon/move_command.h"
#include "server/daemon/operator_watch.h"

namespace psd {
namespace {

constexpr double kLiveTimeoutSecondsMax = 86'400;
constexpr uint64_t kLooksMax = 1'000'000;

}  // namespace

ServerFlags::ServerFlags(CLI::App& command, const std::string& seconds, const std::string& server)
    : seconds_(seconds) {
  if (!server.empty()) servers_.push_back(server);
  auto* const option =
      command
          .add_option("--server", servers_,
                      "The daemon's address; of several, with commas between them, the first that answers")
          ->delimiter(',')
          ->allow_extra_args(false)  // the next word is the command's own
          ->type_name("ADDRESS");
  if (!server.empty()) option->capture_default_str()->envname("PSD_SERVER");
  command.add_option("--timeout", seconds_, "How long to wait for the daemon's answer")
      ->capture_default_str()
      ->type_name("SECONDS");
  addCredentialFlags(command, credentials_);
}

Result<DaemonCall> ServerFlags::call() const {
  PSD_ASSIGN_OR_RETURN(const double seconds, parseSeconds({"--timeout", seconds_}, kLiveTimeoutSecondsMax));
  const std::chrono::duration<double> most(seconds);
  PSD_ASSIGN_OR_RETURN(Credentials credentials, readCredentials(credentials_, std::getenv));
  return DaemonCall{servers_, std::chrono::ceil<std::chrono::milliseconds>(most), std::move(credentials)};
}

Result<uint64_t> parseLooks(const std::string& text) { return parseInteger({"--looks", text}, 0, kLooksMax); }

LiveCommands::Command LiveCommands::add(CLI::App& to, const std::string& name, const std::string& help,
                                        const std::string& seconds) {
  CLI::App* const app = to.add_subcommand(name, help);
  return {app, std::make_unique<ServerFlags>(*app, seconds)};
}

LiveCommands::LiveCommands(CLI::App& app) {
  top_ = add(app, "top", "Show what a running daemon does, each second", "5");
  top_.app->add_option("--looks", looks_, "End after so many; 0: go on")
      ->capture_default_str()
      ->type_name("N");
  const auto addHere = [this](CLI::App& command) {
    command.add_flag("--here", here_, "Of the daemon at --server alone, not of all that serve the model");
  };
  addHere(*top_.app);
  events_ = add(app, "events",
                "Show what happened in a running daemon: who came and went, reloads, checkpoints", "5");
  events_.app->add_flag("--follow", follow_, "And then what happens, until the daemon ends");
  events_.app->add_flag("--json", json_, "One object a line, for programs");
  addHere(*events_.app);
  checkpoint_ = add(app, "checkpoint",
                    "Let a running daemon take a checkpoint now; returns when it is complete", "600");
  set_ = add(app, "set", "Change one key of a running daemon's configuration, until it reads its file again",
             "60");
  set_.app->add_option("assignment", assignment_, "As optimizer.lr=0.05")->required()->type_name("KEY=VALUE");
  switch_ =
      add(app, "switch",
          "Let the standby of a running daemon take its place, and the daemon become the standby", "10");
  recover_ = add(
      app, "recover",
      "Let a daemon that waits for a dead primary take its place with what it has, whatever is lost", "60");
  move_ = add(app, "move",
              "Let other daemons serve the model from now on, more or fewer, while trainers work", "600");
  move_.app->add_option("--to", to_, "One of the daemons that are to serve it, which have no model yet")
      ->required()
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("ADDRESS");
  move_.app->add_option("--patience", patience_, "How long to wait until trainers have ended what they do")
      ->capture_default_str()
      ->type_name("SECONDS");
  CLI::App* const trainer = app.add_subcommand("trainer", "Do something to one trainer of a running daemon");
  trainer->require_subcommand(1);
  remove_ = add(*trainer, "remove", "End a trainer's session; its process is not let in again", "5");
  remove_.app->add_option("rank", rank_, "The trainer's rank")->required()->type_name("RANK");
}

std::optional<Status> LiveCommands::run() const {
  const auto calling = [](const Command& command, auto work) -> Status {
    PSD_ASSIGN_OR_RETURN(const DaemonCall call, command.server->call());
    return work(call);
  };
  if (*top_.app) {
    return calling(top_, [this](const DaemonCall& call) -> Status {
      PSD_ASSIGN_OR_RETURN(const uint64_t looks, parseLooks(looks_));
      return topOf(call, {looks, here_});
    });
  }
  if (*events_.app) {
    return calling(events_, [this](const DaemonCall& call) {
      return printEvents(call, {.follow = follow_, .json = json_, .here = here_});
    });
  }
  if (*checkpoint_.app) return calling(checkpoint_, checkpointServer);
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

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/auth/credentials.h"
#include "common/os/env.h"
#include "common/status/status.h"
#include "server/daemon/operator_commands.h"

namespace psd {

/// --server, --timeout and what to show the daemon, of one subcommand. Its address stays the same, since the
/// command line is read into it.
class ServerFlags {
 public:
  /// `server`: the default; empty: none.
  ServerFlags(CLI::App& command, const std::string& seconds,
              const std::string& server = "tcp://localhost:5500");
  ServerFlags(const ServerFlags&) = delete;

  bool given() const { return !servers_.empty(); }
  Result<DaemonCall> call() const;

 private:
  std::string seconds_;  // a text until it is checked
  std::vector<std::string> servers_;
  CredentialFlags credentials_;
};

/// The subcommands about a running daemon that change one thing or go on looking. Its address stays the same.
class LiveCommands {
 public:
  explicit LiveCommands(CLI::App& app);
  LiveCommands(const LiveCommands&) = delete;

  /// The chosen command's outcome; nothing when none of them was chosen.
  std::optional<Status> run() const;

 private:
  struct Command {
    CLI::App* app = nullptr;
    std::unique_ptr<ServerFlags> server;
  };
  static Command add(CLI::App& to, const std::string& name, const std::string& help,
                     const std::string& seconds);

  Command top_, checkpoint_, remove_, set_, events_, switch_, recover_, move_;
  std::string rank_, assignment_, looks_ = "0", patience_ = "30";
  std::vector<std::string> to_;
  bool follow_ = false, json_ = false, here_ = false;
};

/// A number of looks as --looks has it; 0: no bound.
Result<uint64_t> parseLooks(const std::string& text);

}  // namespace psd

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/auth/credentials.h"
#include "common/os/env.h"
#include "common/status/status.h"
#include "server/tools/operator_commands.h"

namespace psd {

/// The flags --server, --timeout and credentials of one subcommand. Not movable, since the command-line
/// parser holds pointers into it.
class ServerFlags {
 public:
  /// `server`: the default address; empty: none.
  ServerFlags(CLI::App& command, const std::string& seconds,
              const std::string& server = "tcp://localhost:5500");
  ServerFlags(const ServerFlags&) = delete;

  bool given() const { return !servers_.empty(); }
  Result<DaemonCall> call() const;

 private:
  std::string seconds_;  // unparsed
  std::vector<std::string> servers_;
  CredentialFlags credentials_;
};

/// The subcommands that change or watch a running daemon. Not movable, since the command-line parser holds
/// pointers into it.
class LiveCommands {
 public:
  explicit LiveCommands(CLI::App& app);
  LiveCommands(const LiveCommands&) = delete;

  /// Runs the selected command and returns its outcome; nullopt if none of these was selected.
  std::optional<Status> run() const;

 private:
  struct Command {
    CLI::App* app = nullptr;
    std::unique_ptr<ServerFlags> server;
  };
  /// Adds the commands for published versions.
  void addVersions(CLI::App& app);
  /// Of `psd follow`.
  Result<FreshnessBound> parseBound() const;
  static Command add(CLI::App& to, const std::string& name, const std::string& help,
                     const std::string& seconds);

  Command top_, checkpoint_, publish_, versions_, rollback_, followed_, remove_, set_, events_, switch_,
      recover_, move_;
  std::string rank_, version_, assignment_, count_ = "0", sort_ = "rank", patience_ = "30", into_, shared_,
                                            map_, hook_, hookSeconds_ = "60", behind_, behindSeconds_;
  std::vector<std::string> to_;
  bool follow_ = false, json_ = false, here_ = false, once_ = false;
};

/// Parses the value of --count; 0: no limit.
Result<uint64_t> parseCount(const std::string& text);

}  // namespace psd

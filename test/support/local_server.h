#pragma once

#include <memory>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "test/support/temp_dir.h"

namespace psd::testing {

/// A daemon in this process: a psd::Server on a thread of its own, on a free TCP port of the loopback
/// interface and on a Unix socket. Ends in an orderly way when destroyed. Owned by one thread.
class LocalServer {
 public:
  /// `config` as in a configuration file, without `listen`. A config or start that fails ends the test
  /// program with the reason.
  explicit LocalServer(nlohmann::ordered_json config);
  ~LocalServer();

  /// "tcp://127.0.0.1:PORT"
  const std::string& address() const { return address_; }
  /// "unix:///…"
  std::string unixAddress() const { return "unix://" + folder_.file("psd.sock"); }
  /// What `psd status --json` shows.
  nlohmann::ordered_json status() const;

 private:
  TempDir folder_;  // of the Unix socket
  std::string address_;
  std::thread thread_;
};

}  // namespace psd::testing

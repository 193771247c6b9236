#pragma once

#include <memory>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

namespace psd::testing {

/// A daemon in this process: a psd::Server on a thread of its own, on a free TCP port of the loopback
/// interface. Ends in an orderly way when destroyed. Owned by one thread.
class LocalServer {
 public:
  /// `config` as in a configuration file, without `listen`. A config or start that fails ends the test
  /// program with the reason.
  explicit LocalServer(nlohmann::ordered_json config);
  ~LocalServer();

  /// "tcp://127.0.0.1:PORT"
  const std::string& address() const { return address_; }
  /// What `psd status --json` shows.
  nlohmann::ordered_json status() const;

 private:
  std::string address_;
  std::thread thread_;
};

}  // namespace psd::testing

#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/status/status.h"
#include "server/store/backend.h"
#include "test/support/temp_dir.h"

namespace psd {
class ControlLoop;
class EventLoop;
}  // namespace psd

namespace psd::testing {

/// A daemon in this process: a psd::Server on its own thread, on a free TCP port of the loopback interface
/// and on a Unix socket. Shuts down in an orderly way when destroyed. Owned by one thread.
class LocalServer {
 public:
  /// `config` as in a configuration file, without `listen`. A config or start that fails ends the test
  /// program with the reason. `device` holds the shards; null: that of testDevice().
  explicit LocalServer(nlohmann::ordered_json config, std::shared_ptr<Backend> device = nullptr);
  ~LocalServer();

  /// Runs on the daemon's main thread instead of its last work, saving.
  void setWhenQuiet(std::function<void()> work);
  /// "tcp://127.0.0.1:PORT"
  const std::string& address() const { return address_; }
  /// "unix:///…"
  std::string unixAddress() const { return "unix://" + folder_.file("psd.sock"); }
  /// An event loop, numbered from 0, and its link to the control loop: for a LocalClient, which must be
  /// destroyed before this.
  const std::shared_ptr<EventLoop>& loop(size_t index) const { return loops_.at(index); }
  ControlLoop& controlLoop() const { return *controlLoop_; }
  /// Applies another configuration, like `psd reload` after the file has changed.
  Result<std::string> reload(nlohmann::ordered_json config);
  /// The document of `psd status --json`. May be called on a thread with its own event loop.
  nlohmann::ordered_json status() const;
  /// Waits until the document of `psd status --json` satisfies `condition`, and returns it; ends the test
  /// program after a minute.
  nlohmann::ordered_json statusWhen(
      const std::function<bool(const nlohmann::ordered_json&)>& condition) const;

 private:
  nlohmann::ordered_json completed(nlohmann::ordered_json config) const;

  TempDir folder_;  // of the Unix socket
  std::string address_;
  std::vector<std::shared_ptr<EventLoop>> loops_;
  ControlLoop* controlLoop_ = nullptr;
  std::mutex mutex_;             // guards the members below
  nlohmann::ordered_json next_;  // the configuration that the server rereads
  std::function<void()> whenQuiet_ = [] {};
  std::thread thread_;
};

}  // namespace psd::testing

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <kj/async-io.h>

#include "server/config/daemon_config.h"
#include "server/rpc/control.h"
#include "server/rpc/event_loop.h"
#include "server/rpc/listener.h"

namespace psd {

/// The network side of a daemon: listeners, event-loop threads and control, and their orderly end.
/// Owned by the control loop's thread, which is the caller's.
class Server {
 public:
  /// `config`, `env` and `io` outlive the server.
  Server(kj::AsyncIoContext& io, const DaemonConfig& config, std::vector<std::shared_ptr<Backend>> backends,
         Env& env);
  ~Server();

  /// Binds the addresses, prepares the model that the config names, starts the threads and accepts.
  Status start();
  /// What is listened on, with the ports that were chosen.
  std::vector<Address> addresses() const;
  Control& control() { return control_; }

  /// Serves until a stop is requested, then: no new connections or updates, what has begun is
  /// finished (limits.drain_ms), trainers are told, `whenQuiet` runs, threads end.
  kj::Promise<void> run(std::function<void()> whenQuiet);
  /// Cuts the waiting of an end that has begun short.
  void hurry() { hurry_ = true; }

  nlohmann::ordered_json status() const;

 private:
  /// Resolves when `settled(loop)` holds on every loop or drain_ms have passed.
  kj::Promise<void> settle(std::function<bool(EventLoop&)> settled);
  kj::Promise<void> poll(std::shared_ptr<std::function<bool(EventLoop&)>> settled, kj::TimePoint deadline);
  kj::Promise<void> stopThreads();
  void handOver(OwnFd fd, std::string peer);
  kj::Promise<void> keepTicking();

  kj::AsyncIoContext& io_;
  const DaemonConfig& config_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  DaemonCounters counters_;
  Control control_;
  LoopEnvironment environment_;
  std::vector<Address> addresses_;
  std::vector<std::unique_ptr<EventLoopThread>> threads_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  size_t nextThread_ = 0;
  bool hurry_ = false;
  kj::Promise<void> ticks_ = kj::READY_NOW;
};

}  // namespace psd

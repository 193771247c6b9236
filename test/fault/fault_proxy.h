#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/socket.h"
#include "test/support/random.h"

namespace psd::testing {

/// Stands between trainers and a daemon, passes Cap'n Proto messages on, and after a while does every
/// connection some harm: cuts it, closes one half, swallows messages, sends one twice, or holds one back.
/// What it does follows from the seed and the order of the connections; or only what cut() says. Thread-safe.
class FaultProxy {
 public:
  /// `upstream`: the daemon. A connection lives for at most `messagesMost` messages of one direction.
  FaultProxy(const std::string& upstream, uint64_t seed, uint64_t messagesMost);
  /// One that does no harm by itself.
  explicit FaultProxy(const std::string& upstream) : FaultProxy(upstream, 0, 0) {}
  /// Cuts what is left.
  ~FaultProxy();

  /// "tcp://127.0.0.1:PORT"
  std::string address() const { return address_; }
  /// Cuts a connection, both ways at once. They are numbered as they came, from 0.
  void cut(size_t connection);
  /// From now on what goes to trainers goes in pieces of so many bytes, with such a pause after each.
  void slowDown(size_t pieceBytes, std::chrono::milliseconds pause) {
    pauseMs_ = static_cast<uint64_t>(pause.count());
    pieceBytes_ = pieceBytes;
  }
  /// From now on nothing is passed on, either way, though connections stay.
  void fallSilent() { silent_ = true; }
  /// The first message of each connection to the daemon for which `matches` is true is passed on after so
  /// many others. Before the first connection.
  void holdBack(std::function<bool(std::span<const std::byte>)> matches, uint64_t messages) {
    matches_ = std::move(matches);
    holdMessages_ = messages;
  }
  /// Connections that were done harm.
  uint64_t harmed() const { return harmed_; }

 private:
  enum class Fault { none, cut, halfClose, swallow, repeat, delay };
  struct Plan {
    Fault fault = Fault::none;
    bool upwards = false;  ///< of the two directions
    uint64_t after = 0;    ///< messages
    uint64_t delayMs = 0;
  };
  struct Connection {
    OwnFd trainer, daemon;
    Plan plan;
    std::thread upwards, downwards;
  };

  void acceptAll();
  Plan draw();
  void pump(Connection& connection, bool upwards);
  /// Whether all could be passed on.
  bool passOn(int to, const std::vector<std::byte>& message, bool upwards);
  static void cut(Connection& connection);

  const Address upstream_;
  const uint64_t messagesMost_;  // 0: no harm
  Random random_;                // of the accepting thread
  ListenSockets listening_;
  std::string address_;
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> harmed_{0};
  std::function<bool(std::span<const std::byte>)> matches_;  // null: nothing is held back
  uint64_t holdMessages_ = 0;
  std::atomic<bool> silent_{false};
  std::atomic<size_t> pieceBytes_{0};  // 0: as large as they come
  std::atomic<uint64_t> pauseMs_{0};
  std::mutex mutex_;  // guards the list
  std::list<std::unique_ptr<Connection>> connections_;
  std::thread accepting_;
};

}  // namespace psd::testing

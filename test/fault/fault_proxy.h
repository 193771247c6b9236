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

/// Passes Cap'n Proto messages between trainers and a daemon, and after a while harms each connection: cuts
/// it, closes one half, swallows messages, duplicates one, or delays one. The faults follow from the seed and
/// the order of the connections, or only from calls of cut(). Thread-safe.
class FaultProxy {
 public:
  /// `upstream`: the daemon. A connection lives for at most `messagesMost` messages in one direction.
  FaultProxy(const std::string& upstream, uint64_t seed, uint64_t messagesMost);
  /// A proxy that only does harm on request.
  explicit FaultProxy(const std::string& upstream) : FaultProxy(upstream, 0, 0) {}
  /// Cuts all connections.
  ~FaultProxy();

  /// "tcp://127.0.0.1:PORT"
  std::string address() const { return address_; }
  /// Cuts a connection in both directions at once. Connections are numbered from 0 in the order of their
  /// arrival.
  void cut(size_t connection);
  /// From now on data to trainers is sent in pieces of that many bytes, with this pause after each.
  void slowDown(size_t pieceBytes, std::chrono::milliseconds pause) {
    pauseMs_ = static_cast<uint64_t>(pause.count());
    pieceBytes_ = pieceBytes;
  }
  /// From now on no message is passed in either direction; connections stay open.
  void stopRelaying() { silent_ = true; }
  /// The first message of each connection to the daemon for which `matches` is true is passed on after this
  /// number of other messages. Call before the first connection.
  void holdBack(std::function<bool(std::span<const std::byte>)> matches, uint64_t messages) {
    matches_ = std::move(matches);
    holdMessages_ = messages;
  }
  /// The number of harmed connections.
  uint64_t harmed() const { return harmed_; }

 private:
  enum class Fault { none, cut, halfClose, swallow, repeat, delay };
  struct Plan {
    Fault fault = Fault::none;
    bool upwards = false;  ///< direction: to the daemon
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
  /// Whether everything was passed on.
  bool relay(int to, const std::vector<std::byte>& message, bool upwards);
  static void cut(Connection& connection);

  const Address upstream_;
  const uint64_t messagesMost_;  // 0: no harm
  Random random_;                // used by the accepting thread
  ListenSockets listening_;
  std::string address_;
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> harmed_{0};
  std::function<bool(std::span<const std::byte>)> matches_;  // null: nothing is delayed
  uint64_t holdMessages_ = 0;
  std::atomic<bool> silent_{false};
  std::atomic<size_t> pieceBytes_{0};  // 0: not split
  std::atomic<uint64_t> pauseMs_{0};
  std::mutex mutex_;  // guards the list
  std::list<std::unique_ptr<Connection>> connections_;
  std::thread accepting_;
};

}  // namespace psd::testing

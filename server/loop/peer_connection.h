#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <kj/async.h>

namespace psd {

/// A peer's connection as its event loop sees it, independent of the protocol. Confined to the loop's thread.
///
/// Shared between the loop and the services on it: a call in progress is not cancelled when the peer
/// disconnects, and keeps using the connection, which is closed by then.
class PeerConnection {
 public:
  virtual ~PeerConnection() noexcept(false) = default;  // destructors of kj objects may throw

  /// Starts serving the peer.
  virtual void open() = 0;
  /// Closes the connection and releases its services, except those that a call in progress holds.
  virtual void close() = 0;
  /// Resolves once the peer has disconnected, or was disconnected by the daemon.
  virtual kj::Promise<void> whenDisconnected() = 0;
  /// Why the daemon disconnected the peer; empty if the peer disconnected.
  virtual std::string endReason() = 0;
  /// Polled several times per lease: the reason why the daemon must end this connection now, if it must; an
  /// empty reason: the peer is gone.
  virtual std::optional<std::string> mustEnd() = 0;

  /// The authorization rules have changed: a peer that lost a right is notified, and its calls are refused.
  virtual void recheckAccess() {}

  /// Human-readable: the peer's address, and its description of itself.
  virtual const std::string& peer() const = 0;
  /// Bytes of answers that wait for the peer to read.
  virtual uint64_t queuedBytes() = 0;
  /// Number of trainers' sessions that use it.
  virtual size_t trainers() const = 0;
  /// Whether a call that asked for the outcome of the daemon's end is unanswered, or its answer unread.
  virtual bool owesOutcome() = 0;
};

}  // namespace psd

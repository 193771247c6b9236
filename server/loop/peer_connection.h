#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <kj/async.h>

namespace psd {

/// A peer's connection as its event loop sees it, whatever protocol it speaks. Used on the loop's thread
/// only.
///
/// Shared between the loop and what serves it: a call in progress is not cancelled when the peer goes, and
/// goes on using the connection, closed by then.
class PeerConnection {
 public:
  virtual ~PeerConnection() noexcept(false) = default;  // kj objects may throw when they end

  /// Begins to serve.
  virtual void open() = 0;
  /// Ends it; what serves it and no call holds goes with it.
  virtual void close() = 0;
  /// Resolves once the peer has gone, or was cut off.
  virtual kj::Promise<void> whenDisconnected() = 0;
  /// Why the daemon cut the peer off; empty when the peer went by itself.
  virtual std::string endReason() = 0;
  /// Looked at several times in a lease: why this connection must end now, if it must; with an empty reason:
  /// the peer has gone.
  virtual std::optional<std::string> mustEnd() = 0;

  /// Other rules of who may do what hold from now on: a peer that has lost something is told, and its calls
  /// refused.
  virtual void lookAtAccess() {}

  /// For people: where the peer is, and what it says of itself.
  virtual const std::string& peer() const = 0;
  /// Bytes of answers that wait for the peer to read.
  virtual uint64_t queuedBytes() = 0;
  /// Sessions of trainers that go over it.
  virtual size_t trainers() const = 0;
  /// Whether a call that asked for what comes of the daemon's end is not answered yet, or its answer not
  /// read.
  virtual bool owesOutcome() = 0;
};

}  // namespace psd

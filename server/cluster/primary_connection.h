#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/os/address.h"
#include "common/status/status.h"
#include "server/replica/follower.h"

namespace psd {

/// How a standby's connection to its primary ended.
enum class ConnectionEnd : uint8_t {
  dead,      ///< no process listens at the primary's addresses any more, or a different one does
  broken,    ///< it broke or the primary closed it, and the primary is alive
  declined,  ///< the primary rejects this follower, perhaps only for now
};

/// Callbacks of a connection to the primary. Called on the connection's thread.
struct PrimaryEvents {
  std::function<void()> caughtUp;  ///< the model is in place
  /// Another process has the primary's address. `folderTerm`: term of its folder's state; 0: none.
  std::function<void(uint64_t folderTerm)> another;
  std::function<void()> documentChanged;  ///< see ReplicaSink in the schema
  std::function<void(std::string reason)> runEnded;
  /// The process at the address is not identified yet; dialing continues. `answers`: something answers there,
  /// but the handshake fails.
  std::function<void(bool answers, Status why)> troubled;
  std::function<void(ConnectionEnd how, Status why)> ended;  ///< last, once; not after stop()
};

/// The primary to dial, and the identity to present.
struct PrimaryDial {
  std::vector<Address> addresses;  ///< tried in this order
  uint64_t primary = 0;            ///< number of the intended process
  uint64_t follower = 0;           ///< number of this process
  std::vector<Address> ownAddresses;
  std::string name;                                ///< of this daemon, shown in the primary's logs
  uint64_t folderTerm = 0;                         ///< term of this daemon's saved state; 0: none
  std::shared_ptr<Follower> copy;                  ///< receives the model; null: only probes who answers
  std::shared_ptr<std::atomic<uint64_t>> heardMs;  ///< the primary's last heartbeat, on the steady clock
  PrimaryEvents events;
};

/// A standby's connection to its primary. Runs on its own thread, so that work on records or elsewhere in
/// this daemon does not look like silence of the primary. Dials until a connection is established; when that
/// breaks, probes until it is known whether the primary is alive. stop() and the destructor join the thread.
class PrimaryConnection {
 public:
  virtual ~PrimaryConnection() = default;
  /// Accepts no more data and calls no more callbacks. Blocks briefly.
  virtual void stop() = 0;
};

/// Starts to dial.
using DialPrimary = std::function<std::unique_ptr<PrimaryConnection>(PrimaryDial dial)>;

}  // namespace psd

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

/// How a standby's connection to its primary came to its end.
enum class ConnectionEnd : uint8_t {
  dead,      ///< nobody listens at the primary's addresses any more, or another process does
  broken,    ///< it broke, or the primary let go of it, and the primary lives
  declined,  ///< the primary does not want this follower, or not yet
};

/// What a standby hears of its primary. Called on the connection's thread.
struct PrimaryEvents {
  std::function<void()> caughtUp;  ///< the model is in place
  /// Another process has the primary's address. `folderEpoch`: of its folder's state; 0: none.
  std::function<void(uint64_t folderEpoch)> another;
  std::function<void()> planChanged;  ///< see ReplicaSink in the schema
  std::function<void(std::string reason)> runEnded;
  /// Nobody has said yet who is there, and it goes on trying. `answers`: somebody is there, whom it cannot
  /// talk to.
  std::function<void(bool answers, Status why)> troubled;
  std::function<void(ConnectionEnd how, Status why)> ended;  ///< last, once; not after stop()
};

/// Whom a standby dials, and as whom.
struct PrimaryDial {
  std::vector<Address> addresses;  ///< tried in their order
  uint64_t primary = 0;            ///< number of the process that is meant
  uint64_t follower = 0;           ///< this process' own
  std::vector<Address> ownAddresses;
  std::string name;          ///< of this daemon, as the primary's logs show it
  uint64_t folderEpoch = 0;  ///< of which epoch its folder has the state; 0: of none
  std::shared_ptr<Follower>
      copy;  ///< what comes goes there; null: nothing is to come, only who is there is found out
  std::shared_ptr<std::atomic<uint64_t>> heardMs;  ///< when the primary was last heard, on the steady clock
  PrimaryEvents events;
};

/// A connection of a standby to its primary, on a thread of its own, so that neither the work on records nor
/// anything else of this daemon looks like silence. Dials until a connection stands; when that breaks, finds
/// out whether the primary lives, for as long as it takes. Its end, by stop() or the destructor, waits for
/// the thread.
class PrimaryConnection {
 public:
  virtual ~PrimaryConnection() = default;
  /// Nothing that comes is taken any more, and nothing is told. Blocks shortly.
  virtual void stop() = 0;
};

/// Begins to dial.
using DialPrimary = std::function<std::unique_ptr<PrimaryConnection>(PrimaryDial dial)>;

}  // namespace psd

#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/types/daemon_addresses.h"
#include "common/types/samples.h"
#include "trainer/client/api/client.h"

namespace psd {

/// State that a trainer transfers from the daemons that it was joined at before the model moved. A value
/// type.
struct MovedFrom {
  uint64_t move = 0;                 ///< number of the move
  uint64_t daemon = 0;               ///< random number of the process of its daemon, or of the lead
  std::map<Step, HeldSamples> held;  ///< samples of gradients that are unanswered or yet to come
};

/// A client of a fixed set of daemons that can follow a move of the model to others. Used with the client's
/// lock held, which calls leave while they wait; interrupt() needs no lock.
class MovableClient : public Client {
 public:
  /// Whether the daemons wait for this trainer to quiesce for a move.
  virtual bool pendingMove() const = 0;
  /// After observe(): the daemons to which the model has moved; empty: not known to have moved. Waits up to
  /// `within` while an answer is outstanding.
  virtual DaemonAddresses movedTo(std::chrono::milliseconds within) const = 0;
  /// Quiesces, while no call is in progress, until the move is over. Returns the daemons that serve the model
  /// then; empty: these do, and calls continue.
  virtual Result<DaemonAddresses> quiesce() = 0;
  /// After quiesce(): the state to pass to setMovedFrom() of the client of the other daemons.
  virtual MovedFrom movedFrom() const = 0;
  /// Before join(): the trainer was joined at other daemons.
  virtual void setMovedFrom(const MovedFrom& before) = 0;
  /// After join(), of a trainer whose arrays are already in the memory of ClientOptions::cudaDevice: as
  /// useDeviceMemory(), but through host memory where the daemon shares none. False if neither is possible.
  virtual bool stayOnDevice() = 0;
};

}  // namespace psd

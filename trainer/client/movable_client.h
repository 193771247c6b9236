#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/types/daemon_places.h"
#include "common/types/samples.h"
#include "trainer/client/client.h"

namespace psd {

/// What a trainer brings along that was in at other daemons before, from which the model has moved. A value
/// type.
struct MovedFrom {
  uint64_t move = 0;                 ///< the move's number
  uint64_t daemon = 0;               ///< which process its daemon, or the lead, was
  std::map<Step, HeldSamples> held;  ///< samples of gradients that are not answered, or yet to come
};

/// A client of certain daemons, which may be asked to let the model move to others. Owned by the client's
/// thread.
class MovableClient : public Client {
 public:
  /// Whether the daemons wait for this trainer to step aside for a move.
  virtual bool moveAsked() const = 0;
  /// After observe(): the daemons to which the model has moved, where that is known within that time; none:
  /// as far as is known it has not. Waits no longer than there is something to hear.
  virtual DaemonPlaces movedTo(std::chrono::milliseconds within) const = 0;
  /// Steps aside, while no call is under way, until the move is over. Gives the daemons that serve the model
  /// then; none: these do, and calls go on.
  virtual Result<DaemonPlaces> stepAside() = 0;
  /// After stepAside(): what join() of a client of the other daemons is to be given.
  virtual MovedFrom movedFrom() const = 0;
  /// Before join(): the trainer was in at other daemons.
  virtual void comeFrom(const MovedFrom& before) = 0;
  /// After join(), of a trainer whose arrays are in the memory of ClientOptions::cudaDevice already: as
  /// useDeviceMemory(), and by way of host memory where the daemon shares none. False where that cannot be.
  virtual bool stayOnDevice() = 0;
};

}  // namespace psd

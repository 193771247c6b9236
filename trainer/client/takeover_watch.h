#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/wire/stop_signal.h"
#include "trainer/client/api/client.h"

namespace psd {

/// Waits at one daemon, over its own connection and on its own thread, until that daemon has taken over from
/// the trainer's current daemon. Reconnects for as long as needed. Stops when destroyed.
class TakeoverWatch {
 public:
  /// The primary of a replica set.
  struct ServingDaemon {
    uint64_t term;    ///< term in which it serves
    uint64_t number;  ///< random number of its process
  };
  /// Callbacks, on the watch's thread.
  struct Callbacks {
    std::function<void()> takenOver;
    /// The daemon rejects this trainer's credentials, so that it could not continue there, for the reason
    /// `why`; called once.
    std::function<void(const std::string& why)> refused;
  };

  /// `from`: the trainer's current daemon. `callbacks.takenOver` is called at most once.
  /// ErrorCode::overloaded if the system has no thread.
  static Result<std::unique_ptr<TakeoverWatch>> begin(const ClientOptions& options, const std::string& server,
                                                      const ServingDaemon& from, Callbacks callbacks);
  ~TakeoverWatch();

 private:
  TakeoverWatch(const ClientOptions& options, std::string server, const ServingDaemon& from,
                Callbacks callbacks);

  void run();
  /// Outcome of one connection.
  enum class Outcome {
    takenOver,
    broke,    ///< it was established, lasted for a while, and broke
    refused,  ///< the daemon rejects this token
    nothing,  ///< there was none, or the daemon has no takeover to report
  };

  /// One connection; `timeout` is for establishing it.
  Outcome waitOnce(std::chrono::milliseconds timeout);

  const std::string server_, program_, token_;
  const TlsFiles tls_;
  const ServingDaemon from_;
  const Callbacks callbacks_;
  std::string refusal_;  // the newest; belongs to the watch's thread

  wire::StopSignal stop_;
  std::thread thread_;  // last member: uses all of the above
};

}  // namespace psd

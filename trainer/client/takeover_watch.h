#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/wire/stop_signal.h"
#include "trainer/client/client.h"

namespace psd {

/// Waits at one daemon, over a connection and on a thread of its own, until that one has taken over from the
/// daemon that a trainer is with. A daemon that cannot be reached is tried again and again. Ends with the
/// object.
class TakeoverWatch {
 public:
  /// The primary of a pair.
  struct ServingDaemon {
    uint64_t epoch;   ///< in which it serves
    uint64_t number;  ///< of its process
  };
  /// Both are called on the watch's thread.
  struct Tell {
    std::function<void()> takenOver;
    /// Why the daemon lets nobody in who is as the trainer, so that it could not go on there; once.
    std::function<void(const std::string& why)> refused;
  };

  /// `from`: the daemon that the trainer is with. `tell` is called once, on the watch's thread.
  /// ErrorCode::overloaded where the system has no thread.
  static Result<std::unique_ptr<TakeoverWatch>> begin(const ClientOptions& options, const std::string& server,
                                                      const ServingDaemon& from, Tell tell);
  ~TakeoverWatch();

 private:
  TakeoverWatch(const ClientOptions& options, std::string server, const ServingDaemon& from, Tell tell);

  void run();
  /// What became of one connection.
  enum class Seen {
    takenOver,
    broke,    ///< it let this watch in, stood for a while, and is gone
    refused,  ///< the daemon lets nobody in with this token
    nothing,  ///< there was none, or it has no take-over to tell of
  };

  /// One connection, for which `timeout` is given.
  Seen waitOnce(std::chrono::milliseconds timeout);

  const std::string server_, token_;
  const TlsFiles tls_;
  const ServingDaemon from_;
  const Tell tell_;
  std::string refusal_;  // the newest; of the watch's thread

  wire::StopSignal stop_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd

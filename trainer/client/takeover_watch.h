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
  /// `known`: the epoch in which the trainer's daemon serves. `tell` is called once, on the watch's thread.
  /// ErrorCode::overloaded where the system has no thread.
  static Result<std::unique_ptr<TakeoverWatch>> begin(const ClientOptions& options, const std::string& server,
                                                      uint64_t known, std::function<void()> tell);
  ~TakeoverWatch();

 private:
  TakeoverWatch(const ClientOptions& options, std::string server, uint64_t known, std::function<void()> tell);

  void run();
  /// What became of one connection.
  enum class Seen {
    takenOver,
    broke,    ///< it let this watch in, stood for a while, and is gone
    nothing,  ///< there was none, or it has no take-over to tell of
  };

  /// One connection, for which `timeout` is given.
  Seen waitOnce(std::chrono::milliseconds timeout);

  const std::string server_, token_;
  const TlsFiles tls_;
  const uint64_t known_;
  const std::function<void()> tell_;

  wire::StopSignal stop_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

#include "trainer/client/transport/daemon_connection.h"

// Timeouts and pauses of attempts to connect to a daemon.

namespace psd {

/// Limit on one attempt where more can follow: a live daemon answers sooner, and the caller may be
/// interrupted.
inline constexpr std::chrono::milliseconds kAttemptTimeout{5'000};

/// Time left until `deadline`; 0 when it has passed.
inline std::chrono::milliseconds remainingUntil(std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(0));
}

/// Time left until `deadline`, but at least 1 ms: for an attempt that is made in any case.
inline std::chrono::milliseconds timeUntil(std::chrono::steady_clock::time_point deadline) {
  return std::max(remainingUntil(deadline), std::chrono::milliseconds(1));
}

/// ClientOptions::connectTimeout, in which 0 means a single attempt. A value type.
struct ConnectTimeout {
  explicit ConnectTimeout(std::chrono::milliseconds option)
      : time(option.count() == 0 ? kAttemptTimeout : option), retries(option.count() != 0) {}

  std::chrono::milliseconds time;  ///< of all attempts together; positive
  bool retries;
};

/// isLost() for an attempt to connect, which may also time out.
inline bool isUnreachable(const Error& error) {
  return isLost(error) || error.code == ErrorCode::deadlineExceeded;
}

inline bool shouldReconnect(const Error& error) {
  return isUnreachable(error) || error.code == ErrorCode::shuttingDown;
}

/// Exponential backoff with a limit, less a random part of up to half, so that clients that lost the same
/// peer do not all reconnect at once. Pure except for the seed; owned by one thread.
class Backoff {
 public:
  explicit Backoff(uint64_t seed) : random_(seed) {}

  std::chrono::milliseconds next() {
    const int64_t whole = next_.count();
    next_ = std::min(next_ * 2, std::chrono::milliseconds(500));
    return std::chrono::milliseconds(std::uniform_int_distribution<int64_t>((whole + 1) / 2, whole)(random_));
  }

 private:
  std::chrono::milliseconds next_{20};
  std::mt19937_64 random_;
};

/// Timeouts and pauses for connecting to a peer that may be down for long but should be noticed soon when it
/// is up: first attempts are short, since TCP resends a lost SYN only after a second, and so are first
/// pauses. Pure except for the seed; owned by one thread.
class PatientAttempts {
 public:
  explicit PatientAttempts(uint64_t seed) : seed_(seed), backoff_(seed) {}

  /// Timeout of the next attempt to connect.
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// An attempt failed. Returns how long to pause.
  std::chrono::milliseconds failed() {
    timeout_ = std::min(timeout_ * 2, kLongest);
    return backoff_.next();
  }
  /// An established connection broke. Returns how long to pause.
  std::chrono::milliseconds broke() {
    timeout_ = kShortest;
    backoff_ = Backoff(++seed_);
    return backoff_.next();
  }

 private:
  static constexpr std::chrono::milliseconds kShortest{200}, kLongest{1'000};

  uint64_t seed_;
  Backoff backoff_;
  std::chrono::milliseconds timeout_ = kShortest;
};

}  // namespace psd

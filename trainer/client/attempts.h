#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

#include "trainer/client/transport/daemon_connection.h"

// What attempts to come to a daemon go by.

namespace psd {

/// Most that one attempt takes where there are others to make: a daemon that is there answers sooner, and who
/// waits may be asked to stop.
inline constexpr std::chrono::milliseconds kAttemptTimeout{5'000};

/// Time left until `deadline`; 0 when it has passed.
inline std::chrono::milliseconds leftUntil(std::chrono::steady_clock::time_point deadline) {
  using std::chrono::milliseconds;
  const auto left = deadline - std::chrono::steady_clock::now();
  return std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(0));
}

/// The time that is left until `deadline`, but at least 1 ms: for an attempt that is made in any case.
inline std::chrono::milliseconds soonUntil(std::chrono::steady_clock::time_point deadline) {
  return std::max(leftUntil(deadline), std::chrono::milliseconds(1));
}

/// isLost() of an attempt to come to a daemon, which may take too long.
inline bool isOutOfReach(const Error& error) {
  return isLost(error) || error.code == ErrorCode::deadlineExceeded;
}

inline bool worthConnectingAgain(const Error& error) {
  return isOutOfReach(error) || error.code == ErrorCode::shuttingDown;
}

/// How long to pause between attempts: twice as long each time up to a bound, less a random part of up to
/// half, so that many who lost the same peer do not all come back at once. Pure but for the seed; owned by
/// one thread.
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

/// How somebody tries again and again for a peer who may be away for long, and is to be noticed soon where it
/// is not: first attempts are short, since TCP sends a SYN that was lost again only after a second, and
/// pauses too. Pure but for the seed; owned by one thread.
class PatientAttempts {
 public:
  explicit PatientAttempts(uint64_t seed) : seed_(seed), backoff_(seed) {}

  /// Most that the next attempt to connect takes.
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// An attempt came to nothing. Gives how long to pause.
  std::chrono::milliseconds failed() {
    timeout_ = std::min(timeout_ * 2, kLongest);
    return backoff_.next();
  }
  /// The peer was there, and is not any more. Gives how long to pause.
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

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trainer/client/api/client.h"
#include "trainer/client/attempts.h"
#include "trainer/client/client_lock.h"
#include "trainer/client/link.h"

namespace psd {

/// The connection of a program that only reads to the first of several daemons that answers. A call during
/// which it breaks restores it. Thread-safe.
class ReadingLink {
 public:
  using Clock = std::chrono::steady_clock;
  /// The end of a call with its attempts to reconnect. nullopt: the call itself is unlimited, and
  /// ClientOptions::retryTimeout limits these attempts after each fault.
  using Until = std::optional<Clock::time_point>;

  /// Not connected: connect() it, or leave that to the first call(). ErrorCode::overloaded if the system is
  /// out of threads or descriptors.
  static Result<std::unique_ptr<ReadingLink>> make(const ClientOptions& options);

  /// Connects; retries until ClientOptions::connectTimeout while no daemon answers.
  Status connect();
  /// Runs `work(connection, timer)` on the I/O thread and returns the value of its promise. Where a fault of
  /// the connection or the end of the daemon prevents the answer, reconnects and runs it again.
  template <class Answer, class Work>
  Answer call(const Until& until, const Work& work) {
    const ClientLock::Hold hold(lock_);
    PSD_RETURN_IF_ERROR(hold.status());
    Faults faults{until, options_.retryTimeout, Backoff(seed_)};
    for (;;) {
      if (*interrupted_) return waitEndedError();
      const uint64_t connection = connection_;
      const Clock::time_point start = Clock::now();
      Answer answer = run<Answer>(work);
      if (answer.ok() || !isFault(answer.error()) || !faults.mayGoOn(start)) return answer;
      if (const auto pause = faults.pause(); pause.count() > 0 && !lock_.pause(pause))
        return waitEndedError();
      PSD_RETURN_IF_ERROR(reconnect(connection, answer.error(), faults.deadline()));
    }
  }
  /// Runs `work` once. After interrupt() it waits for a moment only.
  template <class Answer, class Work>
  Answer callOnce(const Work& work) {
    const ClientLock::Hold hold(lock_);
    PSD_RETURN_IF_ERROR(hold.status());
    return run<Answer>(work);
  }
  /// Pauses a call; an Error if it must end.
  Status pause(std::chrono::milliseconds time);
  /// Whether the error of a call means that another attempt may succeed.
  static bool isFault(const Error& error) {
    return isLost(error) || error.code == ErrorCode::shuttingDown || error.code == ErrorCode::standby;
  }

  const ClientOptions& options() const { return options_; }
  /// Of the connection, or the first one.
  std::string server() const;
  /// Ends the waits of all calls, which fail (interrupted), and those of later ones.
  void interrupt() { *interrupted_ = true; }

 private:
  /// The faults of one call. A daemon that is ending may answer with errors for a while.
  class Faults {
   public:
    Faults(const Until& until, std::chrono::milliseconds retry, Backoff backoff)
        : until_(until), retry_(retry), backoff_(backoff) {}
    /// Counts a fault of a run that began at `start`; whether to try again.
    bool mayGoOn(Clock::time_point start) {
      const Clock::time_point now = Clock::now();
      if (count_ == 0 || now - start > kStableAfter) {
        count_ = 0;
        deadline_ = until_ ? *until_ : now + retry_;
      }
      count_++;
      return now < deadline_;
    }
    std::chrono::milliseconds pause() { return count_ == 1 ? std::chrono::milliseconds(0) : backoff_.next(); }
    Clock::time_point deadline() const { return deadline_; }

   private:
    static constexpr std::chrono::seconds kStableAfter{1};

    const Until until_;
    const std::chrono::milliseconds retry_;
    Backoff backoff_;
    uint64_t count_ = 0;  // since a run that lasted
    Clock::time_point deadline_;
  };

  ReadingLink(ClientOptions options, std::unique_ptr<Link> link);

  /// The lock is held for these.
  template <class Answer, class Work>
  Answer run(const Work& work) {
    if (connection_ == 0) return Error{ErrorCode::unavailable, "there is no connection yet"};
    return link_->call<Answer>(
        lock_, [&work](Channel& channel, kj::Timer& timer) { return work(channel.connection(), timer); });
  }
  /// Replaces connection number `broken`, unless another thread has.
  Status reconnect(uint64_t broken, const Error& cause, Clock::time_point deadline);
  Status connectBefore(Clock::time_point deadline);
  /// One attempt at each server, in turn from the current one on.
  Status connectToAny(Clock::time_point deadline);
  Status connectTo(const std::string& server, std::chrono::milliseconds timeout);
  void tell(ClientEvent::What what, const std::string& line);

  const ClientOptions options_;
  const uint64_t seed_;  // of pauses
  const std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  mutable ClientLock lock_;  // guards the rest
  std::unique_ptr<Link> link_;
  size_t server_ = 0;        // of options_.servers
  uint64_t connection_ = 0;  // number of the connection; 0: there was none yet
};

}  // namespace psd

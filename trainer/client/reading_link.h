#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/types/move_notification.h"
#include "trainer/client/api/client.h"
#include "trainer/client/attempts.h"
#include "trainer/client/client_lock.h"
#include "trainer/client/link.h"

namespace psd {

/// The connection of a program that only reads to the first of several daemons that answers. A call during
/// which it breaks restores it; where the model has moved to another daemon, it continues there, but not from
/// one of several daemons or to several. Thread-safe.
class ReadingLink {
 public:
  using Clock = std::chrono::steady_clock;
  /// The end of a call with its attempts to reconnect. nullopt: the call itself is unlimited, and
  /// ClientOptions::retryTimeout limits these attempts after each fault.
  using Until = std::optional<Clock::time_point>;

  /// Not connected: connect() it, or leave that to the first call(). ErrorCode::overloaded if the system is
  /// out of threads or descriptors. `isPart`: the daemon is one of several, so the link follows no move.
  static Result<std::unique_ptr<ReadingLink>> make(const ClientOptions& options, bool isPart = false);

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
  /// Connects to the next server, whose versions may be newer; no-op with a single one. An Error if none
  /// answers before `until`, or within ClientOptions::retryTimeout.
  Status useNext(const Error& why, const Until& until);
  /// Pauses a call; an Error if it must end.
  Status pause(std::chrono::milliseconds time);
  /// Whether the error of a call means that another attempt may succeed.
  static bool isFault(const Error& error) {
    return isLost(error) || error.code == ErrorCode::shuttingDown || error.code == ErrorCode::standby;
  }

  /// As given; servers() has the current addresses.
  const ClientOptions& options() const { return options_; }
  /// The addresses of the daemons, after the moves of the model that are known.
  std::vector<std::string> servers();
  size_t serverCount() { return servers().size(); }
  /// Connects to these servers from the next time on, and to the current one; no-op while another thread
  /// connects.
  void setServers(const std::vector<std::string>& servers);
  /// What the daemon of the newest connection says of itself.
  DaemonIdentity identity() const;
  /// Of the connection, or the first one.
  std::string server() const;
  /// Its index in servers().
  size_t place() const;
  /// Where the model has moved to, which the link does not follow: its calls fail. Empty: it has not.
  DaemonAddresses movedTo() const;
  /// Whether no daemon has answered for ClientOptions::retryTimeout.
  bool isGone() const;
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

  ReadingLink(ClientOptions options, std::unique_ptr<Link> link, bool isPart);

  /// The lock is held for these.
  template <class Answer, class Work>
  Answer run(const Work& work) {
    if (connection_ == 0) return Error{ErrorCode::unavailable, "there is no connection yet"};
    Answer answer = link_->call<Answer>(
        lock_, [&work](Channel& channel, kj::Timer& timer) { return work(channel.connection(), timer); });
    if (answer.ok() || !isFault(answer.error())) {
      lostSince_.reset();
    } else if (!lostSince_) {
      lostSince_ = Clock::now();
    }
    return answer;
  }
  /// Replaces connection number `broken`, unless another thread has. `next`: by one to the next server.
  Status reconnect(uint64_t broken, const Error& cause, Clock::time_point deadline, bool next = false);
  Status connectBefore(Clock::time_point deadline);
  /// One attempt at each server, in turn from the current one on; then at those to which the model has moved.
  Status connectToAny(Clock::time_point deadline);
  Status connectToEach(Clock::time_point deadline);
  /// The model has moved there from the current server.
  Status follow(const DaemonAddresses& to);
  /// Where the model has moved to, as the daemon of the connection has said within `time`; empty: nowhere.
  DaemonAddresses awaitMove(std::chrono::milliseconds time) const;
  Status connectTo(std::string server, std::chrono::milliseconds timeout);
  void tell(ClientEvent::What what, const std::string& line);

  const ClientOptions options_;
  const uint64_t seed_;  // of pauses
  const bool isPart_;
  const std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  mutable ClientLock lock_;  // guards the rest
  std::unique_ptr<Link> link_;
  std::vector<std::string> servers_;
  size_t server_ = 0;                                     // of servers_
  std::shared_ptr<const MoveNotification> notification_;  // of the connection; null: there was none yet
  uint64_t connection_ = 0;                               // number of the connection; 0: there was none yet
  DaemonIdentity identity_;                               // of the daemon at its other end
  DaemonAddresses movedTo_;
  std::optional<Clock::time_point> lostSince_;  // the first fault since the last answer
};

}  // namespace psd

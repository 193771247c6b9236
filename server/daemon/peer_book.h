#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"
#include "server/daemon/peer_rows.h"
#include "server/status/daemon_row.h"

namespace psd {

/// What the other daemons that serve a model say of themselves. Threads of its own ask them, while somebody
/// wants to know and not more often than once a second, each for its status, its addresses in turn with the
/// time of one attempt for each: who is away holds up nobody. Thread-safe.
class PeerBook {
 public:
  /// Daemons of one partition: all that answer at any of the addresses, but `here`.
  struct Peers {
    uint32_t partition = 0;
    std::vector<Address> addresses;
    bool ownPair = false;  ///< this daemon's own partition: nobody need be there
    std::string here;      ///< this daemon's number in its group; empty: it has none
  };
  /// The status document of the daemon at an address; blocks.
  using Ask = std::function<Result<std::string>(const Address& address, const Credentials& credentials)>;

  /// `credentials`: what they are shown; an Error is what is said of each. `clear`: hosts to which a token
  /// may go over a network unencrypted; who is elsewhere, and reached by no other way, is not asked.
  PeerBook(Result<Credentials> credentials, Ask ask, std::set<std::string> clear = {});
  ~PeerBook();

  /// What they said last, and lets them be asked anew. Never waits for them.
  std::vector<DaemonRow> rows(const std::vector<Peers>& peers);
  /// Resolves, on the calling loop, once rows() tells of a look of the last seconds.
  kj::Promise<void> whenLooked(const std::vector<Peers>& peers);
  /// For who comes now and then: as whenLooked(), with one look at most, and without waiting for addresses
  /// that were silent at the look before.
  kj::Promise<void> whenSeen(const std::vector<Peers>& peers);
  /// What they said last; asks nobody.
  std::vector<DaemonRow> seen();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kAtOnceMax = 16;              // that are asked at the same time
  static constexpr std::chrono::seconds kPause{1};      // between two looks
  static constexpr std::chrono::seconds kWantedFor{5};  // after somebody wanted to know
  static constexpr std::chrono::seconds kOldAfter{30};  // rows are not what the daemons are any more

  /// With the mutex held: they are to be asked.
  void want(const std::vector<Peers>& peers);
  /// With the mutex held: rows of long ago are none.
  void forgetOld(const std::vector<Peers>& peers, Clock::time_point now);
  /// With the mutex held: rows_, and how long who is away has been silent.
  std::vector<DaemonRow> rowsAt(Clock::time_point now) const;
  void run();
  bool ends();
  /// Asks all of them.
  std::vector<DaemonRow> look(const std::vector<Peers>& peers);
  std::vector<DaemonRow> lookAt(const Peers& peers);
  /// The addresses, those that were silent last; and how many were not.
  std::pair<std::vector<Address>, size_t> inTurn(const Peers& peers);
  /// One that answers is told of at once, while others are still asked.
  void show(const DaemonRow& row);
  /// Of one more of those that are asked nobody is waited for any more but who was silent before.
  void settle();
  Result<DaemonRow> ask(const Peers& peers, const Address& address);
  bool mayAsk(const Address& address) const;
  /// A row for an address that did not answer, or may not be asked: what was there before, if anything was.
  DaemonRow away(const Peers& peers, const std::string& address, bool asked, const std::string& why);

  const Result<Credentials> credentials_;
  const Ask ask_;
  const std::set<std::string> clear_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool ending_ = false;
  std::vector<Peers> peers_;
  Clock::time_point wanted_;
  std::vector<DaemonRow> rows_;  // of the newest look
  Clock::time_point looked_;     // when that ended
  std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> waiters_,
      seers_;          // of whenLooked(), whenSeen()
  bool once_ = false;  // a look is wanted, whoever else does
  bool looking_ = false;
  size_t unsettled_ = 0;          // of the look that goes on
  std::set<std::string> silent_;  // addresses, at the last look
  struct Answer {
    DaemonRow row;
    Clock::time_point at;
  };
  std::map<std::string, Answer> answers_;  // the last one by address, of the addresses that are asked

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd

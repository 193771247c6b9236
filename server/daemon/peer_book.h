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

/// The last known status of the other daemons that serve a model. Background threads query them while there
/// are callers, at most once a second, one address of a daemon after the other with a timeout each, so that
/// an unreachable daemon does not delay the others. Thread-safe.
class PeerBook {
 public:
  /// The daemons of one partition: all that answer at any of the addresses, except `here`.
  struct Peers {
    uint32_t partition = 0;
    std::vector<Address> addresses;
    bool ownReplicaSet = false;  ///< this daemon's own partition: there may be no other daemon
    std::string here;            ///< this daemon's ID in its replica set; empty: it has none
  };
  /// Fetches the status document of the daemon at an address; blocks.
  using Ask = std::function<Result<std::string>(const Address& address, const Credentials& credentials)>;

  /// `credentials`: presented to each daemon; an Error is reported in the row of each. `clear`: hosts to
  /// which the token may be sent unencrypted; an unencrypted address of any other host is not queried.
  PeerBook(Result<Credentials> credentials, Ask ask, std::set<std::string> clear = {});
  ~PeerBook();

  /// The last known rows; triggers a refresh. Does not wait for it.
  std::vector<DaemonRow> rows(const std::vector<Peers>& peers);
  /// Resolves, on the calling loop, once rows() is a few seconds old at most.
  kj::Promise<void> whenRefreshed(const std::vector<Peers>& peers);
  /// For occasional callers: like whenRefreshed(), with one refresh at most, and without waiting for
  /// addresses that did not answer in the previous one.
  kj::Promise<void> whenRefreshedOnce(const std::vector<Peers>& peers);
  /// The last known rows; triggers no refresh.
  std::vector<DaemonRow> seen();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kAtOnceMax = 16;               // concurrent queries
  static constexpr std::chrono::seconds kPause{1};       // between refreshes
  static constexpr std::chrono::seconds kRefreshFor{5};  // refreshing continues after the last caller
  static constexpr std::chrono::seconds kOldAfter{30};   // age from which rows are not shown any more

  /// With the mutex held: requests refreshes of `peers`.
  void request(const std::vector<Peers>& peers);
  /// With the mutex held: discards rows older than kOldAfter.
  void discardOld(const std::vector<Peers>& peers, Clock::time_point now);
  /// With the mutex held: rows_, with the time since the last answer of each daemon that does not answer.
  std::vector<DaemonRow> rowsAt(Clock::time_point now) const;
  void run();
  bool ends();
  /// Queries all daemons, on several threads.
  std::vector<DaemonRow> look(const std::vector<Peers>& peers);
  std::vector<DaemonRow> queryPartition(const Peers& peers);
  /// The addresses with those that did not answer in the previous refresh last; and the number of the others.
  std::pair<std::vector<Address>, size_t> orderAddresses(const Peers& peers);
  /// Publishes the row of a daemon that answered, while others are still being queried.
  void show(const DaemonRow& row);
  /// One more entry of `peers` has only addresses left that did not answer in the previous refresh. After the
  /// last entry, whenRefreshedOnce() resolves.
  void partitionSettled();
  Result<DaemonRow> ask(const Peers& peers, const Address& address);
  bool mayAsk(const Address& address) const;
  /// The row for an address that did not answer or may not be queried: its last answer, if there was one.
  DaemonRow unreachableRow(const Peers& peers, const std::string& address, bool polled,
                           const std::string& why);

  const Result<Credentials> credentials_;
  const Ask ask_;
  const std::set<std::string> clear_;

  std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  bool ending_ = false;
  std::vector<Peers> peers_;
  Clock::time_point requestedAt_;
  std::vector<DaemonRow> rows_;    // of the newest refresh
  Clock::time_point refreshedAt_;  // end of that refresh
  std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> waiters_,
      onceWaiters_;           // of whenRefreshed(), whenRefreshedOnce()
  bool refreshOnce_ = false;  // one refresh is due, independent of requestedAt_
  bool refreshing_ = false;
  size_t pendingPartitions_ = 0;       // of the current refresh, see partitionSettled()
  std::set<std::string> unreachable_;  // addresses that did not answer in the last refresh
  struct Answer {
    DaemonRow row;
    Clock::time_point at;
  };
  std::map<std::string, Answer> answers_;  // the last answer, by address

  std::thread thread_;  // last: it uses all members above
};

}  // namespace psd

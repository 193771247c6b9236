#include "server/daemon/peer_book.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <system_error>
#include <utility>

#include <kj/common.h>
#include <pthread.h>

#include "common/config/json_file.h"
#include "common/text/text.h"
#include "server/status/status_json.h"

namespace psd {
namespace {

constexpr size_t kWhyBytesMax = 300;

/// Placeholder rows until the daemons have been queried.
std::vector<DaemonRow> unpolled(const std::vector<PeerBook::Peers>& peers) {
  std::vector<DaemonRow> rows;
  for (const PeerBook::Peers& some : peers) {
    if (some.addresses.empty()) continue;
    DaemonRow& row = rows.emplace_back();
    row.partition = some.partition;
    row.address = some.addresses.front().toString();
    row.why = "query in progress";
  }
  return rows;
}

}  // namespace

PeerBook::PeerBook(Result<Credentials> credentials, Ask ask, std::set<std::string> clear)
    : credentials_(std::move(credentials)),
      ask_(std::move(ask)),
      clear_(std::move(clear)),
      thread_([this] { run(); }) {}

PeerBook::~PeerBook() {
  {
    const std::lock_guard hold(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void PeerBook::request(const std::vector<Peers>& peers) {
  peers_ = peers;
  requestedAt_ = Clock::now();
  discardOld(peers, requestedAt_);
}

void PeerBook::discardOld(const std::vector<Peers>& peers, Clock::time_point now) {
  if (!refreshing_ && now - refreshedAt_ > kOldAfter) rows_ = unpolled(peers);
}

kj::Promise<void> PeerBook::whenRefreshed(const std::vector<Peers>& peers) {
  const std::lock_guard hold(mutex_);
  request(peers);
  wake_.notify_one();
  if (requestedAt_ - refreshedAt_ < kRefreshFor) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  waiters_.push_back(kj::mv(waiter.fulfiller));
  return kj::mv(waiter.promise);
}

kj::Promise<void> PeerBook::whenRefreshedOnce(const std::vector<Peers>& peers) {
  const std::lock_guard hold(mutex_);
  const Clock::time_point now = Clock::now();
  if (now - refreshedAt_ < kRefreshFor || (refreshing_ && pendingPartitions_ == 0)) return kj::READY_NOW;
  auto waiter = kj::newPromiseAndCrossThreadFulfiller<void>();
  onceWaiters_.push_back(kj::mv(waiter.fulfiller));
  if (!refreshing_) {
    peers_ = peers;
    discardOld(peers, now);
    refreshOnce_ = true;
    wake_.notify_one();
  }
  return kj::mv(waiter.promise);
}

std::vector<DaemonRow> PeerBook::rowsAt(Clock::time_point now) const {
  std::vector<DaemonRow> rows = rows_;
  for (DaemonRow& row : rows) {
    const auto answer = answers_.find(row.address);
    if (row.answers || answer == answers_.end()) continue;
    row.silentSeconds = std::chrono::duration<double>(now - answer->second.at).count();
  }
  return rows;
}

std::vector<DaemonRow> PeerBook::seen() {
  const std::lock_guard hold(mutex_);
  return rowsAt(Clock::now());
}

std::vector<DaemonRow> PeerBook::rows(const std::vector<Peers>& peers) {
  std::vector<DaemonRow> rows;
  {
    const std::lock_guard hold(mutex_);
    request(peers);
    rows = rowsAt(requestedAt_);
  }
  wake_.notify_one();
  return rows;
}

void PeerBook::run() {
  pthread_setname_np(pthread_self(), "psd-peers");
  std::unique_lock hold(mutex_);
  while (!ending_) {
    if (!refreshOnce_ && Clock::now() - requestedAt_ > kRefreshFor) {
      wake_.wait(hold);
      continue;
    }
    refreshOnce_ = false;
    refreshing_ = true;
    const std::vector<Peers> peers = peers_;
    pendingPartitions_ = peers.size();
    hold.unlock();
    std::vector<DaemonRow> rows = look(peers);
    hold.lock();
    refreshing_ = false;
    rows_ = std::move(rows);
    refreshedAt_ = Clock::now();
    unreachable_.clear();
    for (const DaemonRow& row : rows_) {
      if (row.polled && !row.answers) unreachable_.insert(row.address);
    }
    for (auto* const some : {&waiters_, &onceWaiters_}) {
      for (const auto& waiter : std::exchange(*some, {})) waiter->fulfill();
    }
    std::erase_if(answers_, [this](const auto& entry) {
      return std::ranges::none_of(rows_, [&](const DaemonRow& row) { return row.address == entry.first; });
    });
    wake_.wait_for(hold, kPause, [this] { return ending_; });
  }
}

bool PeerBook::ends() {
  const std::lock_guard hold(mutex_);
  return ending_;
}

std::vector<DaemonRow> PeerBook::look(const std::vector<Peers>& peers) {
  std::vector<std::vector<DaemonRow>> found(peers.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < peers.size() && !ends(); i = next++) found[i] = queryPartition(peers[i]);
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (size_t i = 1; i < std::min(kAtOnceMax, peers.size()); i++) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads available: those that started query all
    }
    work();
  }
  std::vector<DaemonRow> rows;
  for (std::vector<DaemonRow>& some : found) std::ranges::move(some, std::back_inserter(rows));
  std::ranges::stable_sort(rows, {}, placeOf);
  return rows;
}

std::vector<DaemonRow> PeerBook::queryPartition(const Peers& peers) {
  std::vector<DaemonRow> rows;
  std::vector<DaemonRow> silent;
  std::set<std::string> known{peers.here};
  const std::pair<std::vector<Address>, size_t> turn = orderAddresses(peers);
  const size_t lately = turn.second;
  size_t next = 0;
  KJ_DEFER({
    if (next <= lately) partitionSettled();
  });
  for (const Address& address : turn.first) {
    if (ends()) break;
    if (next++ == lately) partitionSettled();
    const std::string name = address.toString();
    if (!mayAsk(address)) {
      silent.push_back(unreachableRow(peers, name, false,
                                      "not queried: the token would be sent there unencrypted; use tls://"));
      continue;
    }
    Result<DaemonRow> row = ask(peers, address);
    if (!row.ok()) {
      // A Unix socket in the list may belong to another machine: a failure there says nothing about the
      // daemon.
      const bool tells = address.kind == Address::Kind::tcp || peers.addresses.size() == 1;
      if (tells) silent.push_back(unreachableRow(peers, name, true, row.message()));
      continue;
    }
    const bool alone = row->daemon.empty();
    const bool another = alone ? !peers.ownReplicaSet : known.insert(row->daemon).second;
    if (another) {
      show(*row);
      rows.push_back(*std::move(row));
    }
    if (alone) return rows;  // all addresses belong to it
  }
  std::ranges::move(silent, std::back_inserter(rows));
  return rows;
}

std::pair<std::vector<Address>, size_t> PeerBook::orderAddresses(const Peers& peers) {
  std::vector<Address> addresses = peers.addresses;
  const std::lock_guard hold(mutex_);
  const auto silent = std::stable_partition(
      addresses.begin(), addresses.end(),
      [this](const Address& address) { return !unreachable_.contains(address.toString()); });
  return {addresses, static_cast<size_t>(silent - addresses.begin())};
}

void PeerBook::show(const DaemonRow& row) {
  const std::lock_guard hold(mutex_);
  std::erase_if(rows_, [&](const DaemonRow& shown) {
    return shown.partition == row.partition && (!shown.polled || shown.address == row.address);
  });
  rows_.insert(std::ranges::upper_bound(rows_, placeOf(row), {}, placeOf), row);
}

void PeerBook::partitionSettled() {
  const std::lock_guard hold(mutex_);
  if (--pendingPartitions_ > 0) return;
  for (const auto& waiter : std::exchange(onceWaiters_, {})) waiter->fulfill();
}

bool PeerBook::mayAsk(const Address& address) const {
  const std::string name = address.toString();
  return clear_.contains(address.host) || !credentials_.ok() ||
         tokenInTheClear(credentials_->token, std::span(&name, 1)).empty();
}

Result<DaemonRow> PeerBook::ask(const Peers& peers, const Address& address) {
  if (!credentials_.ok()) return credentials_.error();
  const std::string name = address.toString();
  PSD_ASSIGN_OR_RETURN(const std::string text, ask_(address, *credentials_));
  PSD_ASSIGN_OR_RETURN(const auto document, parseJson(text, "its status"));
  PSD_ASSIGN_OR_RETURN(const DaemonStatus status, readStatus(document, "its status"));
  DaemonRow row = rowOf(status, address);
  row.partition = peers.partition;
  const std::lock_guard hold(mutex_);
  Answer& answer = answers_[name];
  answer.row = row;
  answer.at = Clock::now();
  return row;
}

DaemonRow PeerBook::unreachableRow(const Peers& peers, const std::string& address, bool polled,
                                   const std::string& why) {
  const std::lock_guard hold(mutex_);
  const auto answer = answers_.find(address);
  DaemonRow row = answer == answers_.end() ? DaemonRow() : answer->second.row;
  row.partition = peers.partition;
  row.address = address;
  row.polled = polled;
  row.answers = false;
  row.why = oneLine(why, kWhyBytesMax);
  row.gradientsPerSecond = 0;
  return row;
}

}  // namespace psd

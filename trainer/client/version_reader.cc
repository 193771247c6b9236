#include "trainer/client/api/version_reader.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "trainer/client/combined_version_reader.h"
#include "trainer/client/moving_version_reader.h"
#include "trainer/client/other_daemons.h"
#include "trainer/client/received_version.h"
#include "trainer/client/remote_version_reader.h"
#include "trainer/client/transport/slice_queue.h"
#include "trainer/client/version_calls.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = ReadingLink::Clock;

constexpr std::chrono::seconds kReadLease{60};       // of a version while it is read
constexpr kj::Duration kRenewal = 20 * kj::SECONDS;  // of that lease
constexpr uint64_t kSliceBytes = 1u << 20;           // of a read
constexpr uint64_t kSliceBytesMin = 4u << 10;        // smallest that a daemon's limits may require
constexpr uint32_t kSlicesInFlight = 4;
constexpr std::chrono::seconds kStaleFor{1};  // for which a wait without a timeout looks for a server
constexpr int kMovesWhileConnecting = 8;      // from one number of daemons to another, while connecting
constexpr kj::Duration kFreshnessPeriod = 500 * kj::MILLISECONDS;  // of questions during a wait

}  // namespace

/// A version's file on its way: which slices have arrived, across connections. Used on the I/O thread while
/// read() is in progress, otherwise by the caller of fetch().
class ArrivingVersion {
 public:
  ArrivingVersion(PublishedVersion info, std::shared_ptr<std::byte[]> file)
      : info_(std::move(info)), file_(std::move(file)) {
    cut(kSliceBytes);
  }
  const PublishedVersion& info() const { return info_; }
  const std::shared_ptr<std::byte[]>& file() const { return file_; }
  /// Number of slices that have arrived.
  size_t arrived() const { return static_cast<size_t>(std::ranges::count(arrived_, true)); }
  /// Cuts the file into smaller slices, none of which has arrived; false: they are as small as possible.
  bool cutSmaller() {
    if (sliceBytes_ == kSliceBytesMin) return false;
    cut(std::max(sliceBytes_ / 4, kSliceBytesMin));
    return true;
  }

  /// Reads what is missing, and renews `lease` meanwhile.
  kj::Promise<Status> read(DaemonConnection& connection, const VersionLease& lease) {
    auto missing = kj::heap<std::vector<uint64_t>>();
    for (uint64_t i = 0; i < arrived_.size(); i++) {
      if (!arrived_[i]) missing->push_back(i);
    }
    auto all = sendInWindow(
        missing->size(), kSlicesInFlight,
        [this, &connection, &missing = *missing](size_t i) { return readSlice(connection, missing[i]); });
    return all.exclusiveJoin(renew(connection, lease)).attach(kj::mv(missing));
  }

  /// Renews a lease from time to time. Resolves only with an error.
  static kj::Promise<Status> renew(DaemonConnection& connection, const VersionLease& lease) {
    return connection.timer().afterDelay(kRenewal).then([&connection, lease] {
      return leaseVersion(connection, lease)
          .then([&connection, lease](const Result<PublishedVersion>& renewed) -> kj::Promise<Status> {
            if (!renewed.ok()) return renewed.status();
            return renew(connection, lease);
          });
    });
  }

 private:
  void cut(uint64_t sliceBytes) {
    sliceBytes_ = sliceBytes;
    arrived_.assign((info_.bytes + sliceBytes - 1) / sliceBytes, false);
  }
  kj::Promise<Status> readSlice(DaemonConnection& connection, uint64_t index) {
    const uint64_t begin = index * sliceBytes_, count = std::min(sliceBytes_, info_.bytes - begin);
    return readVersionBytes(connection, info_.number, begin, {file_.get() + begin, count})
        .then([this, index](Status read) {
          if (read.ok()) arrived_[index] = true;
          return read;
        });
  }

  const PublishedVersion info_;
  const std::shared_ptr<std::byte[]> file_;
  uint64_t sliceBytes_ = 0;
  std::vector<bool> arrived_;
};

Status RemoteVersionReader::checkHistory(const PublishedVersion& version) {
  if (isPart_) return {};
  const std::lock_guard hold(mutex_);
  if (!ended_.admits(version.history, link_->place(), link_->serverCount())) {
    return {ErrorCode::stale, fmt::format("{}: still has the versions of history {:016x}, which has ended",
                                          link_->server(), version.history)};
  }
  const uint64_t before = std::exchange(history_, version.history);
  if (before == 0 || before == version.history) return {};
  ended_.add(before);
  newest_ = 0;
  return {ErrorCode::modelMismatch,
          fmt::format("{}: the daemon has lost its versions: history {:016x} is now {:016x}, whose "
                      "numbers mean other bytes; the next call continues with these",
                      link_->server(), before, version.history)};
}

Status RemoteVersionReader::checkFresh(const Result<VersionFreshness>& freshness,
                                       const std::string& server) const {
  return freshness.ok() ? bound_.check(*freshness, server) : freshness.status();
}

kj::Promise<Status> RemoteVersionReader::watchFreshness(DaemonConnection& connection,
                                                        kj::Timer& timer) const {
  return timer.afterDelay(kFreshnessPeriod).then([this, &connection, &timer] {
    return readFreshness(connection)
        .then([this, &connection, &timer](const Result<VersionFreshness>& freshness) -> kj::Promise<Status> {
          Status fresh = checkFresh(freshness, connection.server());
          if (!fresh.ok()) return fresh;
          return watchFreshness(connection, timer);
        });
  });
}

Result<VersionFreshness> RemoteVersionReader::freshness() {
  return link_->call<Result<VersionFreshness>>(
      std::nullopt, [](DaemonConnection& connection, kj::Timer&) { return readFreshness(connection); });
}

Status RemoteVersionReader::useFresh(const ReadingLink::Until& until) {
  if (!bound_.any()) return {};
  const Clock::time_point giveUp = until ? *until : Clock::now() + kStaleFor;
  Backoff backoff(drawBits());
  for (;;) {
    const auto freshness = link_->call<Result<VersionFreshness>>(
        until, [](DaemonConnection& connection, kj::Timer&) { return readFreshness(connection); });
    const Status stale = checkFresh(freshness, link_->server());
    if (stale.ok() || stale.error().code != ErrorCode::stale || Clock::now() >= giveUp) return stale;
    PSD_RETURN_IF_ERROR(link_->useNext(stale.error(), until));
    const auto left = std::chrono::duration_cast<milliseconds>(giveUp - Clock::now());
    PSD_RETURN_IF_ERROR(link_->pause(std::clamp(left, milliseconds(0), backoff.next())));
  }
}

Status RemoteVersionReader::checkNewest(const PublishedVersion& version) {
  if (isPart_) return {};
  const std::lock_guard hold(mutex_);
  if (version.number >= newest_) {
    newest_ = version.number;
    return {};
  }
  return {
      ErrorCode::notReady,
      fmt::format("{}: the newest version is {}, and this reader has seen version {}, which the daemon has "
                  "lost: wait for a newer one",
                  link_->server(), version.number, newest_)};
}

Result<std::vector<PublishedVersion>> RemoteVersionReader::versions() {
  auto versions = list(std::nullopt);
  if (versions.ok() && !versions->empty()) PSD_RETURN_IF_ERROR(checkHistory(versions->back()));
  return versions;
}

Result<std::vector<PublishedVersion>> RemoteVersionReader::list(const ReadingLink::Until& until) {
  return link_->call<Result<std::vector<PublishedVersion>>>(
      until, [](DaemonConnection& connection, kj::Timer&) { return readVersions(connection); });
}

Result<PublishedVersion> RemoteVersionReader::waitFor(uint64_t number, std::optional<milliseconds> timeout) {
  ReadingLink::Until until;
  if (timeout) until = Clock::now() + *timeout;
  const auto version = wait_.alone([&] {
    {
      const std::lock_guard hold(mutex_);
      number = std::max(number, newest_);
    }
    return waitAlone(number, until);
  });
  if (version.ok() || !isOver(version.error(), until, link_->isGone())) return version;
  return notPublished(link_->server(), number, *timeout, version.error());
}

Result<PublishedVersion> RemoteVersionReader::waitAlone(uint64_t number, const ReadingLink::Until& until) {
  // Each turn ends with a version, with an error, or after a pause with another connection or server.
  const Clock::time_point giveUp = until ? *until : Clock::now() + link_->options().retryTimeout;
  for (Backoff backoff(drawBits());;) {
    PSD_RETURN_IF_ERROR(useFresh(until));
    // The daemon may have started a history whose numbers are far below this one.
    auto version = awaitPublished(0, until, true);
    if (const Status same = version.ok() ? checkHistory(*version) : Status(); !same.ok()) {
      if (same.error().code != ErrorCode::stale || Clock::now() >= giveUp) return same.error();
      PSD_RETURN_IF_ERROR(link_->useNext(same.error(), until));
      PSD_RETURN_IF_ERROR(link_->pause(backoff.next()));
      continue;
    }
    bool fault = false;
    if (version.ok() && version->number < number) {
      version = awaitPublished(number, until, false);
      fault = !version.ok() && ReadingLink::isFault(version.error());
    }
    if (version.ok()) {
      if (const Status same = checkHistory(*version); !same.ok()) {
        if (same.error().code == ErrorCode::stale) continue;  // as the next turn finds
        return same.error();
      }
      if (checkNewest(*version).ok()) return version;
      number = version->number + 1;  // another thread has read a newer one
      continue;
    }
    // Another server may be within the bound.
    if (version.error().code == ErrorCode::stale) continue;
    // overloaded: the end of an earlier wait of this connection has not reached the daemon.
    if (!fault && version.error().code != ErrorCode::overloaded) return version;
    if (until && Clock::now() >= *until) return version;
    PSD_RETURN_IF_ERROR(link_->pause(backoff.next()));
  }
}

Result<PublishedVersion> RemoteVersionReader::awaitPublished(uint64_t number, const ReadingLink::Until& until,
                                                             bool reconnects) {
  using Answer = Result<PublishedVersion>;
  const auto work = [this, number, &until](DaemonConnection& connection,
                                           kj::Timer& timer) -> kj::Promise<Answer> {
    auto answer = awaitVersion(connection, number);
    if (bound_.any()) {
      answer = answer.exclusiveJoin(
          watchFreshness(connection, timer).then([](const Status& stale) { return Answer(stale.error()); }));
    }
    if (!until) return answer;
    auto timeout = timer.afterDelay(remainingUntil(*until).count() * kj::MILLISECONDS).then([] {
      return Answer(Error{ErrorCode::deadlineExceeded, "the wait timed out"});
    });
    return answer.exclusiveJoin(kj::mv(timeout));
  };
  return reconnects ? link_->call<Answer>(until, work) : link_->callOnce<Answer>(work);
}

Result<FetchedVersion> RemoteVersionReader::fetch(uint64_t number, const FetchedVersion* base) {
  if (number == 0) PSD_RETURN_IF_ERROR(useFresh(std::nullopt));
  const uint64_t lease = drawId();
  auto fetched = fetchLeased(number, lease, base);
  release(lease);
  return fetched;
}

std::optional<FetchedVersion> RemoteVersionReader::fetchPatched(const PublishedVersion& version,
                                                                const FetchedVersion& base,
                                                                const VersionLease& lease,
                                                                std::string& fault) {
  const PatchKey ends{version.history, base.info.number, version.number};
  if (base.info.history != ends.history || ends.from >= ends.to) return {};
  const auto size = link_->callOnce<Result<uint64_t>>(
      [&ends](DaemonConnection& connection, kj::Timer&) { return findPatch(connection, ends); });
  if (!size.ok() || *size == 0 || *size > version.bytes) return {};
  std::vector<std::byte> bytes;
  try {
    bytes.resize(*size);
  } catch (const std::bad_alloc&) {
    return {};
  }
  const uint64_t slices = (*size + kSliceBytes - 1) / kSliceBytes;
  const Status read = link_->callOnce<Status>([&](DaemonConnection& connection, kj::Timer&) {
    auto all = sendInWindow(slices, kSlicesInFlight, [&](size_t i) {
      const uint64_t begin = i * kSliceBytes, count = std::min(kSliceBytes, bytes.size() - begin);
      return readPatchBytes(connection, ends, begin, std::span(bytes).subspan(begin, count));
    });
    return all.exclusiveJoin(ArrivingVersion::renew(connection, lease));
  });
  if (!read.ok()) return {};
  auto patched = patchVersion(version, base, bytes);
  if (patched.ok()) return *std::move(patched);
  fault = patched.message();
  return {};
}

Result<FetchedVersion> RemoteVersionReader::fetchLeased(uint64_t number, uint64_t lease,
                                                        const FetchedVersion* base) {
  VersionLease terms{lease, number, kReadLease};
  std::unique_ptr<ArrivingVersion> arriving;
  std::string fault;
  Clock::time_point progress = Clock::now();
  Backoff backoff(lease);
  for (size_t asked = 1;;) {
    const auto leased = leaseToFetch(terms, arriving.get(), number == 0);
    if (!leased.ok()) {
      // Another server may have it: of one that is missing at the first, each is asked once.
      const size_t servers = link_->serverCount();
      const bool exists = arriving || (number == 0 && hasSeen());
      const bool isMissing =
          leased.error().code == ErrorCode::notReady || leased.error().code == ErrorCode::stale;
      const bool mayTry = exists ? Clock::now() - progress < link_->options().retryTimeout : asked < servers;
      if (servers == 1 || !isMissing || !mayTry) return leased.error();
      if (number == 0) {  // or a newer one
        arriving = nullptr;
        terms.number = 0;
      }
      PSD_RETURN_IF_ERROR(link_->useNext(leased.error(), std::nullopt));
      asked++;
      PSD_RETURN_IF_ERROR(link_->pause(backoff.next()));
      continue;
    }
    const PublishedVersion& version = *leased;
    if (!arriving) {
      terms.number = version.number;
      if (base) {
        if (auto patched = fetchPatched(version, *base, terms, fault)) return *std::move(patched);
        base = nullptr;
        continue;  // renews the lease, perhaps with another server
      }
      PSD_ASSIGN_OR_RETURN(auto file, allocateVersion(version.bytes));
      arriving = std::make_unique<ArrivingVersion>(version, std::move(file));
    } else if (version.history != arriving->info().history) {
      return Error{ErrorCode::modelMismatch,
                   fmt::format("{}: version {} was replaced while it was read", server(), version.number)};
    } else if (version.bytes != arriving->info().bytes) {
      return Error{ErrorCode::protocolMismatch,
                   fmt::format("{}: the size of version {} has changed", server(), version.number)};
    }
    const size_t before = arriving->arrived();
    const Status read = link_->callOnce<Status>(
        [&](DaemonConnection& connection, kj::Timer&) { return arriving->read(connection, terms); });
    if (read.ok()) break;
    if (read.error().code == ErrorCode::badSlice && arriving->cutSmaller()) continue;
    if (!ReadingLink::isFault(read.error())) return read.error();
    if (arriving->arrived() > before) progress = Clock::now();
    if (Clock::now() - progress >= link_->options().retryTimeout) return read.error();
    PSD_RETURN_IF_ERROR(link_->pause(backoff.next()));
  }
  auto verified = verifyVersion(arriving->info(), arriving->file());
  if (verified.ok()) verified->patchFault = std::move(fault);
  if (verified.ok()) return verified;
  return Error{verified.error().code, server() + ": " + verified.message()};
}

Result<PublishedVersion> RemoteVersionReader::leaseToFetch(const VersionLease& terms,
                                                           const ArrivingVersion* arriving, bool isNewest) {
  auto version = lease(terms, arriving);
  if (version.ok() && !arriving && isNewest) PSD_RETURN_IF_ERROR(checkNewest(*version));
  return version;
}

bool RemoteVersionReader::hasSeen() {
  const std::lock_guard hold(mutex_);
  return newest_ > 0;
}

bool RemoteVersionReader::isEarlier(const PublishedVersion& version, uint64_t asked) {
  const std::lock_guard hold(mutex_);
  return asked != 0 && link_->serverCount() == 1 && ended_.contains(version.history);
}

Result<PublishedVersion> RemoteVersionReader::lease(const VersionLease& lease,
                                                    const ArrivingVersion* arriving) {
  auto version = link_->call<Result<PublishedVersion>>(
      std::nullopt,
      [&lease](DaemonConnection& connection, kj::Timer&) { return leaseVersion(connection, lease); });
  if (version.ok() && !isEarlier(*version, lease.number)) PSD_RETURN_IF_ERROR(checkHistory(*version));
  if (version.ok() || !arriving || version.error().code != ErrorCode::notReady) return version;
  return Error{ErrorCode::notReady,
               version.message() + "; it was removed while it was read: read the newest one"};
}

void RemoteVersionReader::release(uint64_t lease) {
  static_cast<void>(link_->callOnce<Status>(
      [lease](DaemonConnection& connection, kj::Timer&) { return releaseVersion(connection, lease); }));
}

Result<uint64_t> RemoteVersionReader::pin(uint64_t number, std::chrono::seconds time) {
  PSD_RETURN_IF_ERROR(checkPinTime(time));
  const uint64_t lease = drawId();
  PSD_RETURN_IF_ERROR(pinAs(lease, number, time));
  return lease;
}

Status RemoteVersionReader::pinAs(uint64_t id, uint64_t number, std::chrono::seconds time) {
  const auto version = lease({id, number, time}, nullptr);
  Status kept = version.ok() ? keep({{id, version->number, time}, version->history, link_->server()})
                             : version.status();
  if (!kept.ok()) release(id);
  return kept;
}

SeenVersion RemoteVersionReader::seen() {
  const std::lock_guard hold(mutex_);
  return {history_, newest_};
}

void RemoteVersionReader::continueFrom(const SeenVersion& seen) {
  const std::lock_guard hold(mutex_);
  history_ = seen.history;
  newest_ = seen.number;
}

std::vector<HandedLease> RemoteVersionReader::handOverPins() {
  const std::lock_guard hold(mutex_);
  handedOver_ = true;
  std::vector<HandedLease> pins;
  if (!keeper_) return pins;
  for (const uint64_t lease : keeper_->leases()) {
    if (auto pin = keeper_->handOver(lease)) pins.push_back(*std::move(pin));
  }
  return pins;
}

std::optional<HandedLease> RemoteVersionReader::handOverPin(uint64_t lease) {
  const std::lock_guard hold(mutex_);
  return keeper_ ? keeper_->handOver(lease) : std::nullopt;
}

Status RemoteVersionReader::takeOverPins(const std::vector<HandedLease>& pins) {
  if (pins.empty()) return {};
  const std::string here = server();
  const std::lock_guard hold(mutex_);
  PSD_RETURN_IF_ERROR(makeKeeper());
  for (const HandedLease& pin : pins) PSD_RETURN_IF_ERROR(keeper_->takeOver(pin, here));
  return {};
}

Status RemoteVersionReader::keep(const GrantedLease& granted) {
  const std::lock_guard hold(mutex_);
  if (handedOver_) return movedWhilePinned(granted.server);
  PSD_RETURN_IF_ERROR(makeKeeper());
  return keeper_->keep(granted);
}

Status RemoteVersionReader::makeKeeper() {
  if (keeper_) return {};
  PSD_ASSIGN_OR_RETURN(keeper_,
                       LeaseKeeper::make(
                           link_->options(), [link = link_.get()] { return link->servers(); }, isPart_));
  return {};
}

Status RemoteVersionReader::unpin(uint64_t lease) {
  const auto granted = [&]() -> Result<GrantedLease> {
    const std::lock_guard hold(mutex_);
    if (!keeper_) return Error{ErrorCode::invalidArgument, "there is no such lease"};
    return keeper_->forget(lease);
  }();
  Status held = granted.status();
  if (held.ok() && granted->server != link_->server()) return keeper_->end(*granted);
  if (held.ok()) {  // the version may have been lost since the last renewal
    const auto renewed =
        link_->callOnce<Result<PublishedVersion>>([&granted](DaemonConnection& connection, kj::Timer&) {
          return leaseVersion(connection, granted->lease);
        });
    held = granted->checkRenewed(renewed, server());
    if (!held.ok() && held.error().code != ErrorCode::notReady) held = {};
  }
  release(lease);
  return held;
}

Result<std::unique_ptr<VersionReader>> VersionReader::connect(const ClientOptions& options,
                                                              const FreshnessBound& bound) {
  return MovingVersionReader::connect(options, bound);
}

Result<std::shared_ptr<MovableVersionReader>> connectToVersions(const ClientOptions& options,
                                                                const FreshnessBound& bound) {
  ClientOptions own = options;
  for (int moves = 0;; moves++) {
    PSD_ASSIGN_OR_RETURN(auto link, ReadingLink::make(own));
    const Status connected = link->connect();
    if (const DaemonAddresses to = link->movedTo();
        !connected.ok() && !to.empty() && moves < kMovesWhileConnecting) {
      own.servers = to.front();
      PSD_RETURN_IF_ERROR(checkToken(own, link->server()));
      continue;
    }
    PSD_RETURN_IF_ERROR(connected);
    // Several daemons that serve a model train it, so they are never behind.
    if (link->identity().daemons.size() > 1) return connectToParts(std::move(link));
    return std::shared_ptr<MovableVersionReader>(
        std::make_shared<RemoteVersionReader>(std::move(link), false, bound));
  }
}

}  // namespace psd

#include "trainer/client/api/version_reader.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "trainer/client/lease_keeper.h"
#include "trainer/client/reading_link.h"
#include "trainer/client/received_version.h"
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

/// A version's file on its way: which slices have arrived, across connections. Used on the I/O thread while
/// read() is in progress, otherwise by the caller of fetch().
class Arriving {
 public:
  Arriving(PublishedVersion info, std::shared_ptr<std::byte[]> file)
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

/// The reader of a daemon's versions over a ReadingLink.
class RemoteVersionReader final : public VersionReader {
 public:
  explicit RemoteVersionReader(std::unique_ptr<ReadingLink> link) : link_(std::move(link)) {}
  ~RemoteVersionReader() override {
    if (!keeper_) return;
    for (const uint64_t lease : keeper_->leases()) static_cast<void>(unpin(lease));
  }

  Result<std::vector<PublishedVersion>> versions() override;
  Result<PublishedVersion> waitFor(uint64_t number, std::optional<milliseconds> timeout) override;
  Result<FetchedVersion> fetch(uint64_t number, const FetchedVersion* base) override;
  Result<uint64_t> pin(uint64_t number, std::chrono::seconds time) override;
  Status unpin(uint64_t lease) override;
  void interrupt() override { link_->interrupt(); }
  std::string server() const override { return link_->server(); }

 private:
  Result<PublishedVersion> waitAlone(uint64_t number, const ReadingLink::Until& until);
  /// published() of the connection in use; deadlineExceeded at `until`.
  Result<PublishedVersion> awaitPublished(uint64_t number, const ReadingLink::Until& until, bool reconnects);
  Result<FetchedVersion> fetchLeased(uint64_t number, uint64_t lease, const FetchedVersion* base);
  /// The version by a patch of `base`; nullopt: there is none, or it failed, which `fault` says.
  std::optional<FetchedVersion> fetchPatched(const PublishedVersion& version, const FetchedVersion& base,
                                             const VersionLease& lease, std::string& fault);
  /// Leases the version; reconnects. `arriving`: what has arrived of it; null: nothing.
  Result<PublishedVersion> lease(const VersionLease& lease, const Arriving* arriving);
  /// Renews a lease from now on.
  Status keep(const GrantedLease& granted);
  /// Releases a lease if there is a connection; it ends by itself otherwise.
  void release(uint64_t lease);
  /// Fails if the version is of another history than before; from then on that one counts.
  Status checkHistory(const PublishedVersion& version);
  /// Fails if the number, of the newest version, is smaller than before.
  Status checkNewest(const PublishedVersion& version);

  const std::unique_ptr<ReadingLink> link_;
  std::mutex mutex_;                     // guards the members below
  uint64_t history_ = 0;                 // 0: no version was seen
  uint64_t newest_ = 0;                  // number of the newest version that was returned
  bool isWaiting_ = false;               // some thread is within waitFor()
  std::unique_ptr<LeaseKeeper> keeper_;  // null until the first pin()
};

Status RemoteVersionReader::checkHistory(const PublishedVersion& version) {
  const std::lock_guard hold(mutex_);
  const uint64_t before = std::exchange(history_, version.history);
  if (before == 0 || before == version.history) return {};
  newest_ = 0;
  return {ErrorCode::modelMismatch,
          fmt::format("{}: the daemon has lost its versions: history {:016x} is now {:016x}, whose "
                      "numbers mean other bytes; the next call continues with these",
                      link_->server(), before, version.history)};
}

Status RemoteVersionReader::checkNewest(const PublishedVersion& version) {
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
  auto versions = link_->call<Result<std::vector<PublishedVersion>>>(
      std::nullopt, [](DaemonConnection& connection, kj::Timer&) { return readVersions(connection); });
  if (versions.ok() && !versions->empty()) PSD_RETURN_IF_ERROR(checkHistory(versions->back()));
  return versions;
}

Result<PublishedVersion> RemoteVersionReader::waitFor(uint64_t number, std::optional<milliseconds> timeout) {
  const Clock::time_point start = Clock::now();
  ReadingLink::Until until;
  if (timeout) until = start + *timeout;
  {
    const std::lock_guard hold(mutex_);
    if (isWaiting_) {
      return Error{ErrorCode::invalidArgument,
                   "another thread waits for a version with this reader: make one for each thread"};
    }
    isWaiting_ = true;
    number = std::max(number, newest_);
  }
  auto version = waitAlone(number, until);
  const std::lock_guard hold(mutex_);
  isWaiting_ = false;
  if (version.ok() || version.error().code != ErrorCode::deadlineExceeded) return version;
  const std::string what = number == 0 ? "no version was" : fmt::format("version {} was not", number);
  return Error{ErrorCode::deadlineExceeded,
               fmt::format("{}: {} published within {}: see the key publish of its configuration",
                           link_->server(), what, durationText(*timeout))};
}

Result<PublishedVersion> RemoteVersionReader::waitAlone(uint64_t number, const ReadingLink::Until& until) {
  for (Backoff backoff(drawBits());;) {
    // The daemon may have started a history whose numbers are far below this one.
    auto version = awaitPublished(0, until, true);
    if (version.ok()) PSD_RETURN_IF_ERROR(checkHistory(*version));
    bool fault = false;
    if (version.ok() && version->number < number) {
      version = awaitPublished(number, until, false);
      fault = !version.ok() && ReadingLink::isFault(version.error());
    }
    if (version.ok()) {
      PSD_RETURN_IF_ERROR(checkHistory(*version));
      if (checkNewest(*version).ok()) return version;
      number = version->number + 1;  // another thread has read a newer one
      continue;
    }
    // overloaded: the end of an earlier wait of this connection has not reached the daemon.
    if (!fault && version.error().code != ErrorCode::overloaded) return version;
    if (until && Clock::now() >= *until) return version;
    PSD_RETURN_IF_ERROR(link_->pause(backoff.next()));
  }
}

Result<PublishedVersion> RemoteVersionReader::awaitPublished(uint64_t number, const ReadingLink::Until& until,
                                                             bool reconnects) {
  using Answer = Result<PublishedVersion>;
  const auto work = [number, &until](DaemonConnection& connection, kj::Timer& timer) -> kj::Promise<Answer> {
    auto answer = awaitVersion(connection, number);
    if (!until) return answer;
    auto timeout = timer.afterDelay(remainingUntil(*until).count() * kj::MILLISECONDS).then([] {
      return Answer(Error{ErrorCode::deadlineExceeded, "the wait timed out"});
    });
    return answer.exclusiveJoin(kj::mv(timeout));
  };
  return reconnects ? link_->call<Answer>(until, work) : link_->callOnce<Answer>(work);
}

Result<FetchedVersion> RemoteVersionReader::fetch(uint64_t number, const FetchedVersion* base) {
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
    return all.exclusiveJoin(Arriving::renew(connection, lease));
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
  std::unique_ptr<Arriving> arriving;
  std::string fault;
  Clock::time_point progress = Clock::now();
  Backoff backoff(lease);
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const PublishedVersion version, this->lease(terms, arriving.get()));
    if (!arriving) {
      if (number == 0) PSD_RETURN_IF_ERROR(checkNewest(version));
      terms.number = version.number;
      if (auto patched = base ? fetchPatched(version, *base, terms, fault) : std::nullopt) {
        return *std::move(patched);
      }
      if (base) PSD_RETURN_IF_ERROR(this->lease(terms, nullptr).status());  // that may have taken long
      PSD_ASSIGN_OR_RETURN(auto file, allocateVersion(version.bytes));
      arriving = std::make_unique<Arriving>(version, std::move(file));
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

Result<PublishedVersion> RemoteVersionReader::lease(const VersionLease& lease, const Arriving* arriving) {
  auto version = link_->call<Result<PublishedVersion>>(
      std::nullopt,
      [&lease](DaemonConnection& connection, kj::Timer&) { return leaseVersion(connection, lease); });
  if (version.ok()) PSD_RETURN_IF_ERROR(checkHistory(*version));
  if (version.ok() || !arriving || version.error().code != ErrorCode::notReady) return version;
  return Error{ErrorCode::notReady,
               version.message() + "; it was removed while it was read: read the newest one"};
}

void RemoteVersionReader::release(uint64_t lease) {
  static_cast<void>(link_->callOnce<Status>(
      [lease](DaemonConnection& connection, kj::Timer&) { return releaseVersion(connection, lease); }));
}

Result<uint64_t> RemoteVersionReader::pin(uint64_t number, std::chrono::seconds time) {
  if (time.count() < 1 || time > kLeaseMax) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("a version is pinned by a lease of 1 to {} seconds, not {}", kLeaseMax.count(),
                             time.count())};
  }
  const VersionLease terms{drawId(), number, time};
  const auto version = lease(terms, nullptr);
  const Status kept =
      version.ok() ? keep({{terms.id, version->number, time}, version->history}) : version.status();
  if (kept.ok()) return terms.id;
  release(terms.id);
  return kept.error();
}

Status RemoteVersionReader::keep(const GrantedLease& granted) {
  const std::lock_guard hold(mutex_);
  if (!keeper_) {
    PSD_ASSIGN_OR_RETURN(keeper_, LeaseKeeper::make(link_->options()));
  }
  keeper_->keep(granted);
  return {};
}

Status RemoteVersionReader::unpin(uint64_t lease) {
  const auto granted = [&]() -> Result<GrantedLease> {
    const std::lock_guard hold(mutex_);
    if (!keeper_) return Error{ErrorCode::invalidArgument, "there is no such lease"};
    return keeper_->forget(lease);
  }();
  Status held = granted.status();
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

}  // namespace

Result<std::unique_ptr<VersionReader>> VersionReader::connect(const ClientOptions& options) {
  PSD_ASSIGN_OR_RETURN(auto link, ReadingLink::make(options));
  PSD_RETURN_IF_ERROR(link->connect());
  return std::unique_ptr<VersionReader>(std::make_unique<RemoteVersionReader>(std::move(link)));
}

}  // namespace psd

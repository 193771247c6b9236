#include "trainer/client/combined_version_reader.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/os/random_id.h"
#include "common/safetensors/combined_version.h"
#include "common/text/text.h"
#include "trainer/client/other_daemons.h"
#include "trainer/client/received_version.h"

namespace psd {
namespace {

using std::chrono::milliseconds;
using Clock = ReadingLink::Clock;

constexpr std::chrono::seconds kPartLease{60};  // renewed in the background
/// How long to wait for a newer version of one daemon before all are asked again: it may have begun another
/// history.
constexpr milliseconds kWaitOfOne{1'000};
constexpr milliseconds kPause{20};
/// How long fetch() of the newest waits for the daemons to have one in common.
constexpr std::chrono::seconds kSettle{10};

}  // namespace

Result<CombinedVersionReader::Lists> CombinedVersionReader::lists(const ReadingLink::Until& until) {
  Lists lists;
  for (const auto& part : parts_) {
    PSD_ASSIGN_OR_RETURN(lists.emplace_back(), part->list(until));
  }
  return lists;
}

Status CombinedVersionReader::checkHistory(const PublishedVersion& newest) {
  const std::lock_guard hold(mutex_);
  const uint64_t before = std::exchange(history_, newest.history);
  if (before == 0 || before == newest.history) return {};
  newest_ = 0;
  return {
      ErrorCode::modelMismatch,
      fmt::format("{}: a daemon has lost its versions: history {:016x} of all is now {:016x}, whose numbers "
                  "mean other bytes; the next call continues with these",
                  server(), before, newest.history)};
}

Result<std::vector<PublishedVersion>> CombinedVersionReader::versions() {
  PSD_ASSIGN_OR_RETURN(const Lists all, lists(std::nullopt));
  auto common = commonVersions(all);
  if (!common.empty()) PSD_RETURN_IF_ERROR(checkHistory(common.back()));
  return common;
}

Result<VersionFreshness> CombinedVersionReader::freshness() {
  PSD_ASSIGN_OR_RETURN(const auto common, versions());
  VersionFreshness here{.path = {0}};  // the daemons train the model
  if (common.empty()) return here;
  here.newest = here.sourceNewest = common.back().number;
  here.history = here.sourceHistory = common.back().history;
  return here;
}

Result<PublishedVersion> CombinedVersionReader::waitFor(uint64_t number,
                                                        std::optional<milliseconds> timeout) {
  ReadingLink::Until until;
  if (timeout) until = Clock::now() + *timeout;
  const auto version = wait_.alone([&] { return waitAlone(number, until); });
  const bool isGone = std::ranges::any_of(parts_, [](const auto& part) { return part->isGone(); });
  if (version.ok() || !isOver(version.error(), until, isGone)) return version;
  return notPublished(server(), number, *timeout, version.error(), " by all daemons");
}

Result<PublishedVersion> CombinedVersionReader::waitAlone(uint64_t number, const ReadingLink::Until& until) {
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const Lists all, lists(until));
    if (const auto common = commonVersions(all); !common.empty()) {
      const PublishedVersion& newest = common.back();
      PSD_RETURN_IF_ERROR(checkHistory(newest));
      const std::lock_guard hold(mutex_);
      if (newest.number >= std::max(number, newest_)) {
        newest_ = newest.number;
        return newest;
      }
    }
    if (until && Clock::now() >= *until) return Error{ErrorCode::deadlineExceeded, "the wait timed out"};
    awaitLast(all, until);
  }
}

void CombinedVersionReader::awaitLast(const Lists& lists, const ReadingLink::Until& until) {
  const size_t last = lastDaemon(lists);
  RemoteVersionReader& part = *parts_[last];
  const milliseconds time = until ? std::min(kWaitOfOne, remainingUntil(*until)) : kWaitOfOne;
  // An error is that of the next question to all daemons.
  const auto newer = part.waitFor(newestNumber(lists[last]) + 1, time);
  if (!newer.ok() && newer.error().code != ErrorCode::deadlineExceeded) static_cast<void>(part.pause(kPause));
}

Result<CombinedVersionReader::Common> CombinedVersionReader::find(uint64_t number) {
  const auto until = Clock::now() + kSettle;
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const Lists all, lists(std::nullopt));
    const auto common = commonVersions(all);
    if (number == 0 && !common.empty()) return Common{common.back(), common.back()};
    const auto found = std::ranges::find(common, number, &PublishedVersion::number);
    if (number != 0 && found != common.end()) return Common{*found, common.back()};
    const bool any = std::ranges::all_of(all, [](const auto& versions) { return !versions.empty(); });
    if (number != 0 || !any || Clock::now() >= until) {
      return Error{ErrorCode::notReady, server() + ": " + noCommonVersion(all, number).message};
    }
    PSD_RETURN_IF_ERROR(parts_.front()->pause(kPause));
  }
}

Status CombinedVersionReader::leaseAll(uint64_t lease, uint64_t number, std::chrono::seconds time) {
  for (const auto& part : parts_) {
    const Status leased = part->pinAs(lease, number, time);
    if (leased.ok()) continue;
    static_cast<void>(releaseAll(lease));
    return leased;
  }
  return {};
}

Status CombinedVersionReader::releaseAll(uint64_t lease) {
  Status first;
  for (const auto& part : parts_) {
    const Status ended = part->unpin(lease);
    if (first.ok()) first = ended;
  }
  return first;
}

Status CombinedVersionReader::checkNewest(const PublishedVersion& newest) {
  const std::lock_guard hold(mutex_);
  if (newest.number >= newest_) return {};
  return {ErrorCode::notReady,
          fmt::format("{}: the newest version of all daemons is {}, and this reader has seen version {}: "
                      "wait for a newer one",
                      server(), newest.number, newest_)};
}

Result<FetchedVersion> CombinedVersionReader::fetch(uint64_t number, const FetchedVersion*) {
  const auto until = Clock::now() + kSettle;
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const Common found, find(number));
    PSD_RETURN_IF_ERROR(checkHistory(found.newest));
    const Status isNewest = number == 0 ? checkNewest(found.version) : Status();
    auto fetched = isNewest.ok() ? fetchFound(found.version) : Result<FetchedVersion>(isNewest.error());
    if (fetched.ok()) {
      const std::lock_guard hold(mutex_);
      if (number == 0) newest_ = std::max(newest_, fetched->info.number);
      return fetched;
    }
    // It was removed, or replaced by one of another history, before it was leased everywhere; or a daemon
    // lacks a version that it is about to publish again.
    const ErrorCode code = fetched.error().code;
    const bool mayPass = number == 0 && (code == ErrorCode::notReady || code == ErrorCode::modelMismatch);
    if (!mayPass || Clock::now() >= until) return fetched;
    PSD_RETURN_IF_ERROR(parts_.front()->pause(kPause));
  }
}

Result<FetchedVersion> CombinedVersionReader::fetchFound(const PublishedVersion& version) {
  const uint64_t lease = drawId();
  PSD_RETURN_IF_ERROR(leaseAll(lease, version.number, kPartLease));
  auto fetched = fetchLeased(version.number, lease);
  static_cast<void>(releaseAll(lease));
  if (!fetched.ok() || fetched->info.history == version.history) return fetched;
  return Error{ErrorCode::modelMismatch,
               fmt::format("{}: version {} was replaced by one of another history while it was read",
                           server(), version.number)};
}

Result<FetchedVersion> CombinedVersionReader::fetchLeased(uint64_t number, uint64_t lease) {
  std::vector<FetchedVersion> fetched;
  std::vector<std::span<const std::byte>> files;
  uint64_t received = 0;
  for (const auto& part : parts_) {
    PSD_ASSIGN_OR_RETURN(fetched.emplace_back(), part->fetchPinned(number, lease));
    const FetchedVersion& one = fetched.back();
    files.emplace_back(one.file.get(), one.info.bytes);
    received += one.received;
  }
  const auto whole = WholeVersion::join(std::move(files));
  if (!whole.ok()) return Error{whole.error().code, server() + ": " + whole.message()};
  PSD_ASSIGN_OR_RETURN(auto file, allocateVersion(whole->info().bytes));
  whole->writeTo({file.get(), whole->info().bytes});
  PSD_ASSIGN_OR_RETURN(FetchedVersion version, verifyVersion(whole->info(), std::move(file)));
  version.received = received;
  return version;
}

Result<uint64_t> CombinedVersionReader::pin(uint64_t number, std::chrono::seconds time) {
  PSD_RETURN_IF_ERROR(checkPinTime(time));
  PSD_ASSIGN_OR_RETURN(const Common found, find(number));
  PSD_RETURN_IF_ERROR(checkHistory(found.newest));
  const uint64_t lease = drawId();
  PSD_RETURN_IF_ERROR(leaseAll(lease, found.version.number, time));
  {
    const std::lock_guard hold(mutex_);
    if (!handedOver_) pins_.insert(lease);
    if (!handedOver_) return lease;
  }
  static_cast<void>(releaseAll(lease));
  return movedWhilePinned(server());
}

Status CombinedVersionReader::unpin(uint64_t lease) {
  {
    const std::lock_guard hold(mutex_);
    if (pins_.erase(lease) == 0) return {ErrorCode::invalidArgument, "there is no such lease"};
  }
  return releaseAll(lease);
}

void CombinedVersionReader::interrupt() {
  for (const auto& part : parts_) part->interrupt();
}

std::string CombinedVersionReader::server() const {
  return joined(parts_, ",", [](const auto& part) { return part->server(); });
}

DaemonAddresses CombinedVersionReader::movedTo() {
  for (const auto& part : parts_) {
    if (DaemonAddresses to = part->movedTo(); !to.empty()) return to;
  }
  return {};
}

SeenVersion CombinedVersionReader::seen() {
  const std::lock_guard hold(mutex_);
  return {history_, newest_};
}

void CombinedVersionReader::continueFrom(const SeenVersion& seen) {
  const std::lock_guard hold(mutex_);
  history_ = seen.history;
  newest_ = seen.number;
}

std::vector<HandedLease> CombinedVersionReader::handOverPins() {
  const std::lock_guard hold(mutex_);
  handedOver_ = true;
  std::vector<HandedLease> pins;
  for (const uint64_t lease : std::exchange(pins_, {})) {
    std::optional<HandedLease> pin;  // lost where a daemon has lost its part
    for (const auto& part : parts_) {
      auto own = part->handOverPin(lease);
      if (own && (!pin || pin->lost.ok())) pin = std::move(own);
    }
    if (pin) pins.push_back(*std::move(pin));
  }
  return pins;
}

Status CombinedVersionReader::takeOverPins(const std::vector<HandedLease>& pins) {
  for (const auto& part : parts_) PSD_RETURN_IF_ERROR(part->takeOverPins(pins));
  const std::lock_guard hold(mutex_);
  for (const HandedLease& pin : pins) pins_.insert(pin.lease.id);
  return {};
}

Result<std::shared_ptr<MovableVersionReader>> connectToParts(std::unique_ptr<ReadingLink> first) {
  const DaemonIdentity identity = first->identity();
  const std::string server = first->server();
  std::vector<std::unique_ptr<RemoteVersionReader>> parts;
  for (uint32_t i = 0; i < identity.daemons.size(); i++) {
    ClientOptions own = first->options();
    own.servers = identity.daemons[i];
    if (i == identity.index && std::ranges::find(own.servers, server) == own.servers.end()) {
      own.servers.insert(own.servers.begin(), server);
    }
    const std::string name =
        fmt::format("daemon {} of {}, {}", i, identity.daemons.size(), joined(own.servers, " or "));
    const auto named = [&name](const Error& error) { return Error{error.code, name + ": " + error.message}; };
    if (own.onEvent) {
      own.onEvent = [tell = own.onEvent, name](const ClientEvent& event) {
        tell({event.what, name + ": " + event.line});
      };
    }
    if (const Status may = checkToken(own, server); !may.ok()) return named(may.error());
    auto link = ReadingLink::make(own, true);
    if (!link.ok()) return named(link.error());
    if (const Status connected = (*link)->connect(); !connected.ok()) return named(connected.error());
    if (const DaemonIdentity other = (*link)->identity();
        other.daemons != identity.daemons || other.index != i) {
      return named({ErrorCode::protocolMismatch,
                    "it says that it is another one; all daemons of a model must be configured with the same "
                    "`daemons`, each with its own `index`"});
    }
    parts.push_back(std::make_unique<RemoteVersionReader>(*std::move(link), true));
  }
  return std::shared_ptr<MovableVersionReader>(std::make_shared<CombinedVersionReader>(std::move(parts)));
}

}  // namespace psd

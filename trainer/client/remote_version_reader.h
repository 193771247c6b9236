#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/types/ended_histories.h"
#include "trainer/client/api/version_reader.h"
#include "trainer/client/lease_keeper.h"
#include "trainer/client/movable_version_reader.h"
#include "trainer/client/reading_link.h"
#include "trainer/client/version_calls.h"
#include "trainer/client/version_wait.h"

namespace psd {

class ArrivingVersion;

/// The reader of one daemon's versions over a ReadingLink. Thread-safe.
class RemoteVersionReader final : public MovableVersionReader {
 public:
  /// `isPart`: the daemon publishes a part of a model, and the caller watches histories and numbers.
  explicit RemoteVersionReader(std::unique_ptr<ReadingLink> link, bool isPart = false,
                               const FreshnessBound& bound = {})
      : link_(std::move(link)), isPart_(isPart), bound_(bound) {}
  ~RemoteVersionReader() override {
    if (!keeper_) return;
    for (const uint64_t lease : keeper_->leases()) static_cast<void>(unpin(lease));
  }

  Result<std::vector<PublishedVersion>> versions() override;
  Result<VersionFreshness> freshness() override;
  Result<PublishedVersion> waitFor(uint64_t number,
                                   std::optional<std::chrono::milliseconds> timeout) override;
  Result<FetchedVersion> fetch(uint64_t number, const FetchedVersion* base) override;
  Result<uint64_t> pin(uint64_t number, std::chrono::seconds time) override;
  Status unpin(uint64_t lease) override;
  void interrupt() override { link_->interrupt(); }
  std::string server() const override { return link_->server(); }
  DaemonAddresses movedTo() override { return link_->movedTo(); }
  SeenVersion seen() override;
  void continueFrom(const SeenVersion& seen) override;
  std::vector<HandedLease> handOverPins() override;
  Status takeOverPins(const std::vector<HandedLease>& pins) override;
  /// pin() with an id that the caller has drawn.
  Status pinAs(uint64_t lease, uint64_t number, std::chrono::seconds time);
  /// One of handOverPins(); nullopt: there is no such lease.
  std::optional<HandedLease> handOverPin(uint64_t lease);

  /// versions(), with its attempts to reconnect until `until`.
  Result<std::vector<PublishedVersion>> list(const ReadingLink::Until& until);
  /// Reads a version that the caller has pinned with this lease.
  Result<FetchedVersion> fetchPinned(uint64_t number, uint64_t lease) {
    return fetchLeased(number, lease, nullptr);
  }
  Status pause(std::chrono::milliseconds time) { return link_->pause(time); }
  /// ReadingLink::isGone().
  bool isGone() const { return link_->isGone(); }

 private:
  /// Uses a server within the bound. ErrorCode::stale if none is.
  Status useFresh(const ReadingLink::Until& until);
  /// ErrorCode::stale if the daemon is not within the bound.
  Status checkFresh(const Result<VersionFreshness>& freshness, const std::string& server) const;
  /// Resolves once the daemon is not within the bound any more, with an Error.
  kj::Promise<Status> watchFreshness(DaemonConnection& connection, kj::Timer& timer) const;
  Result<PublishedVersion> waitAlone(uint64_t number, const ReadingLink::Until& until);
  /// published() of the connection in use; deadlineExceeded at `until`.
  Result<PublishedVersion> awaitPublished(uint64_t number, const ReadingLink::Until& until, bool reconnects);
  Result<FetchedVersion> fetchLeased(uint64_t number, uint64_t lease, const FetchedVersion* base);
  /// The version by a patch of `base`; nullopt: there is none, or it failed, which `fault` says.
  std::optional<FetchedVersion> fetchPatched(const PublishedVersion& version, const FetchedVersion& base,
                                             const VersionLease& lease, std::string& fault);
  /// Leases the version; reconnects. `arriving`: what has arrived of it; null: nothing.
  Result<PublishedVersion> lease(const VersionLease& lease, const ArrivingVersion* arriving);
  /// Renews a lease from now on.
  Status keep(const GrantedLease& granted);
  /// Makes the keeper, if there is none; the mutex is held.
  Status makeKeeper();
  /// Releases a lease if there is a connection; it ends by itself otherwise.
  void release(uint64_t lease);
  /// lease() for fetch(); the newest version must not be older than one that was returned before.
  Result<PublishedVersion> leaseToFetch(const VersionLease& terms, const ArrivingVersion* arriving,
                                        bool isNewest);
  /// Whether a version of this history was returned.
  bool hasSeen();
  /// Whether a version that was asked for by its number is of an earlier history, of which the daemon still
  /// has it.
  bool isEarlier(const PublishedVersion& version, uint64_t asked);
  /// Fails if the version is of another history than before; from then on that one counts.
  Status checkHistory(const PublishedVersion& version);
  /// Fails if the number, of the newest version, is smaller than before.
  Status checkNewest(const PublishedVersion& version);

  const std::unique_ptr<ReadingLink> link_;
  const bool isPart_;
  const FreshnessBound bound_;
  VersionWait wait_;
  std::mutex mutex_;      // guards the members below
  uint64_t history_ = 0;  // 0: no version was seen
  EndedHistories ended_;
  uint64_t newest_ = 0;                  // number of the newest version that was returned
  std::unique_ptr<LeaseKeeper> keeper_;  // null until the first pin()
  bool handedOver_ = false;              // handOverPins() was called
};

}  // namespace psd

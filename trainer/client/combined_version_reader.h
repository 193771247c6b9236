#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "trainer/client/remote_version_reader.h"

namespace psd {

/// The reader of the versions of a model that several daemons serve: each daemon publishes its part, and the
/// parts of one moment make a version. A version exists once all daemons have their part of it. It is leased
/// with the same id at all of them, and read whole. Its history is made of those of its parts: it changes
/// when that of any daemon does. Thread-safe.
class CombinedVersionReader final : public MovableVersionReader {
 public:
  /// `parts`: of all daemons, in the order of their partitions; connected.
  explicit CombinedVersionReader(std::vector<std::unique_ptr<RemoteVersionReader>> parts)
      : parts_(std::move(parts)) {}

  Result<std::vector<PublishedVersion>> versions() override;
  Result<VersionFreshness> freshness() override;
  Result<PublishedVersion> waitFor(uint64_t number,
                                   std::optional<std::chrono::milliseconds> timeout) override;
  /// Ignores `base`.
  Result<FetchedVersion> fetch(uint64_t number, const FetchedVersion* base) override;
  Result<uint64_t> pin(uint64_t number, std::chrono::seconds time) override;
  Status unpin(uint64_t lease) override;
  void interrupt() override;
  /// Of all daemons, separated by commas.
  std::string server() const override;
  DaemonAddresses movedTo() override;
  SeenVersion seen() override;
  void continueFrom(const SeenVersion& seen) override;
  std::vector<HandedLease> handOverPins() override;
  Status takeOverPins(const std::vector<HandedLease>& pins) override;

 private:
  using Lists = std::vector<std::vector<PublishedVersion>>;

  /// By daemon, the versions that it has.
  Result<Lists> lists(const ReadingLink::Until& until);
  Result<PublishedVersion> waitAlone(uint64_t number, const ReadingLink::Until& until);
  /// Waits for a newer version of the daemon that is behind the others, for a moment.
  void awaitLast(const Lists& lists, const ReadingLink::Until& until);
  /// A version that all daemons have, and the newest of these.
  struct Common {
    PublishedVersion version, newest;
  };
  /// The version that all daemons have: `number`, or 0: the newest. notReady: they do not.
  Result<Common> find(uint64_t number);
  /// Leases the version at all daemons, or at none.
  Status leaseAll(uint64_t lease, uint64_t number, std::chrono::seconds time);
  /// Ends a lease at all daemons; the first error.
  Status releaseAll(uint64_t lease);
  /// Leases and reads a version of find(), and verifies that it is this one.
  Result<FetchedVersion> fetchFound(const PublishedVersion& version);
  Result<FetchedVersion> fetchLeased(uint64_t number, uint64_t lease);
  /// Fails if the number, of the newest version, is smaller than before.
  Status checkNewest(const PublishedVersion& newest);
  /// Fails if the newest version is of another history than before, which counts from then on. Older ones may
  /// be of a history that has ended.
  Status checkHistory(const PublishedVersion& newest);

  const std::vector<std::unique_ptr<RemoteVersionReader>> parts_;
  VersionWait wait_;
  std::mutex mutex_;         // guards the members below
  uint64_t history_ = 0;     // 0: no version was seen
  uint64_t newest_ = 0;      // number of the newest version that was returned
  std::set<uint64_t> pins_;  // leases of pin(), which are kept beside those of fetch() in progress
  bool handedOver_ = false;  // handOverPins() was called
};

/// Connects to the other daemons that serve the model with that of `first`.
Result<std::shared_ptr<MovableVersionReader>> connectToParts(std::unique_ptr<ReadingLink> first);

}  // namespace psd

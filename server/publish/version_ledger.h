#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// The rules of published versions: their numbers, which are kept, and the leases that readers hold. Pure:
/// the caller passes in the time and removes the files. Not thread-safe.
///
/// Numbers rise and are never reused within a history. The newest version and leased ones are never removed.
/// Leases leave room for two versions, so that readers cannot prevent the next version: with the leased bytes
/// L and the size S of a version, L + 2 S is at most Terms::bytes.
class VersionLedger {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Terms {
    uint64_t keep = 1;    ///< versions that are kept without a lease, at least 1
    uint64_t bytes = 0;   ///< limit on the bytes of all versions, the next one included
    uint32_t leases = 0;  ///< limit on their number
    std::chrono::seconds leaseMax{600};
  };
  struct Lease {
    uint64_t id = 0;      ///< chosen by the reader
    uint64_t number = 0;  ///< of the version
    std::string reader;   ///< human-readable
    Time until;
    bool operator==(const Lease&) const = default;
  };

  explicit VersionLedger(Terms terms) : terms_(terms) {}
  /// Replaces the terms; leases beyond them stay until they end.
  void follow(Terms terms) { terms_ = terms; }

  /// Adds a version of a previous daemon, which may have been leased there: it is not removed before
  /// `heldUntil`. Call before begin(), in ascending order of the numbers.
  void restore(uint64_t number, uint64_t bytes, Time heldUntil);
  /// The next version has a larger number than this one.
  void reserveNumber(uint64_t number) { highest_ = std::max(highest_, number); }

  /// Whether a version of `bytes` may begin. ErrorCode::overloaded if the limit does not admit three versions
  /// of that size, one of them leased, or if what must stay leaves no room for it.
  Status admits(uint64_t bytes, Time now) const;
  /// Starts a version of `bytes`: assigns its number. Errors as of admits().
  Result<uint64_t> begin(uint64_t bytes, Time now);
  /// Forgets all versions and leases: another history begins.
  void clear() { *this = VersionLedger(terms_); }
  /// The next version has exactly this number; those from it on have been removed.
  void continueAt(uint64_t number) { highest_ = number - 1; }
  uint64_t highest() const { return highest_; }
  /// The versions to remove so that a version of `bytes` more (0: of none) keeps to the terms, oldest first.
  std::vector<uint64_t> surplus(uint64_t bytes, Time now) const;
  /// A version of a previous daemon is not removed before then; no-op if it does not exist.
  void holdUntil(uint64_t number, Time until);
  /// The version of begin() is complete: readers may have it.
  void commit(uint64_t number, uint64_t bytes);
  /// A version's file is gone.
  void removed(uint64_t number);

  /// Grants or renews the lease `id`, until `seconds` from now. A reader that takes another version with the
  /// same id releases the previous one. ErrorCode::notReady if the version does not exist, invalidArgument if
  /// the time is zero or beyond Terms::leaseMax, overloaded beyond the other terms.
  Result<Lease> lease(uint64_t id, uint64_t number, std::chrono::seconds time, std::string reader, Time now);
  /// Ends a lease; no-op if there is none.
  void release(uint64_t id) { leases_.erase(id); }
  /// Ends the leases whose time is over.
  void expire(Time now);

  std::chrono::seconds leaseMax() const { return terms_.leaseMax; }
  /// 0: there is none yet.
  uint64_t newest() const { return versions_.empty() ? 0 : versions_.rbegin()->first; }
  /// ErrorCode::notReady: why a version does not exist.
  Error missing(uint64_t number) const;
  std::vector<uint64_t> numbers() const;
  /// By version, until when leases of a previous daemon keep it.
  std::map<uint64_t, Time> heldUntil() const;
  /// By version, until when leases keep it, those of a previous daemon included.
  std::map<uint64_t, Time> leasedUntil() const;
  std::vector<Lease> leases() const;
  /// Sum over the versions that exist.
  uint64_t bytes() const;
  /// What is left of the limit.
  uint64_t room() const { return terms_.bytes - std::min(terms_.bytes, bytes()); }

 private:
  struct Version {
    uint64_t bytes = 0;
    Time heldUntil = Time::min();  ///< by leases of a previous daemon
  };
  /// The versions that leases keep, those of a previous daemon included.
  std::set<uint64_t> leased(Time now) const;

  Terms terms_;
  uint64_t highest_ = 0;
  std::map<uint64_t, Version> versions_;
  std::map<uint64_t, Lease> leases_;
};

}  // namespace psd

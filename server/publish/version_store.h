#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/os/env.h"
#include "common/types/model_layout.h"
#include "server/publish/version_file.h"
#include "server/publish/version_index.h"
#include "server/publish/version_ledger.h"
#include "server/publish/version_mirror.h"
#include "server/publish/version_patches.h"
#include "server/status/daemon_status.h"

namespace psd {

/// The published versions of a model: their files, who waits for the next one, and the leases of readers.
/// Thread-safe.
class VersionStore {
 public:
  using Lease = VersionLedger::Lease;

  /// Where the versions are. A value type.
  struct Place {
    std::shared_ptr<Env> env;
    std::string folder;  ///< created if missing
    /// Checks that this process still holds the folder above; null: it need not.
    std::function<Status()> holds;
    std::shared_ptr<VersionMirror> mirror;  ///< to the standby; null: there is none
    /// Whether the folder has all versions that readers may know; else the next one begins another history.
    bool hasAll = true;
  };

  /// Finds the versions; skips damaged files, with a warning. Blocks.
  static Result<std::shared_ptr<VersionStore>> open(Place place, VersionLedger::Terms terms);

  /// Replaces the terms, from the next version on.
  void follow(VersionLedger::Terms terms);
  /// Identifies the sequence of versions: a reader that sees another history must not compare numbers.
  uint64_t history() const { return history_; }

  /// Whether a version with these tensors, which names the versions of `shards` shards, may be published now.
  /// ErrorCode::overloaded.
  Status admits(std::span<const SafetensorsEntry> tensors, size_t shards) const;
  /// Publishes the values as the next version: its file is durable, and at the standby, before any reader
  /// sees it. `info` lacks number and bytes. Blocks; called by one thread.
  Result<VersionInfo> publish(VersionInfo info, const VersionContent& content);
  /// Removes the versions that no lease keeps any more. Blocks; called by the thread of publish().
  void prune();

  /// Ascending.
  std::vector<VersionInfo> versions() const;
  /// Resolves with the newest version once its number is at least `number`.
  kj::Promise<Result<VersionInfo>> whenPublished(uint64_t number);
  /// 0: the newest. ErrorCode::notReady if it does not exist.
  Result<VersionInfo> find(uint64_t number) const;
  /// Whether these weights, in the layout of the model, are those of the version, rounded to its dtypes.
  /// ErrorCode::modelMismatch names a tensor that differs. Blocks.
  Status checkWeights(uint64_t number, const ModelLayout& layout, std::span<const float> weights) const;
  /// Bytes of a version's file. Errors: badSlice, as of find(), or io. Blocks.
  Result<std::vector<std::byte>> read(uint64_t number, uint64_t offset, uint64_t count);
  /// Size of the patch from version `from` of `history` to version `to`; 0: there is none, so version `to` is
  /// to be read whole. Blocks.
  Result<uint64_t> patchBytes(uint64_t history, uint64_t from, uint64_t to);
  /// Bytes of that patch. Errors: notReady: there is none any more; badSlice; io. Blocks.
  Result<std::vector<std::byte>> readPatch(uint64_t history, uint64_t from, uint64_t to, uint64_t offset,
                                           uint64_t count);
  /// Grants or renews a lease, see VersionLedger::lease(); 0: of the newest version. The lease survives a
  /// restart of the daemon, unless the disk fails, which is logged. Blocks.
  Result<Lease> lease(uint64_t id, uint64_t number, std::chrono::seconds time, const std::string& reader);
  void release(uint64_t id);
  /// Writes the files of all versions to the folder `name` of `to`. Blocks; on any thread.
  Status copyTo(Env& to, const std::string& name) const;
  /// Ends waits for a standby.
  void endMirror();
  /// VersionMirror::waited(); 0 without a standby.
  std::chrono::milliseconds waitedForStandby() const;
  /// Fails all parked and future calls of whenPublished().
  void end(const Error& why);

  /// Number of versions and leases, each an entry of the status.
  size_t entries() const;
  /// Fills in versions, leases and their bytes.
  void fillStatus(PublishStatus& status) const;

 private:
  struct Waiter {
    uint64_t number = 0;
    kj::Own<kj::CrossThreadPromiseFulfiller<Result<VersionInfo>>> fulfiller;
  };

  VersionStore(Place place, VersionLedger::Terms terms)
      : env_(std::move(place.env)),
        folder_(std::move(place.folder)),
        holds_(std::move(place.holds)),
        mirror_(std::move(place.mirror)),
        patches_(env_, folder_),
        ledger_(terms) {}

  /// Reads index and files. Called by open().
  Status load(bool hasAll);
  /// Waits until the standby has all changes so far.
  Status mirrored() const { return mirror_ ? mirror_->wait() : Status(); }
  /// Takes versions out, so that no reader finds them; returns the files to remove, those whose removal
  /// failed before included. The mutex is held.
  std::vector<std::string> takeOut(const std::vector<uint64_t>& numbers);
  void removeFiles(const std::vector<std::string>& paths);
  /// Writes the index if it does not cover the leases and version `newest` or, with `trim`, covers versions
  /// that are leased no longer. Returns the number of the change that the mirror sends, 0 if there is none.
  /// Blocks.
  Result<uint64_t> keepIndex(uint64_t newest, bool trim = false);
  void announce(const VersionInfo& info);
  /// Makes the patch from the newest version to this one, which is not announced yet, if there is room for
  /// it. Returns its size.
  uint64_t makePatch(const VersionInfo& info);

  const std::shared_ptr<Env> env_;
  const std::string folder_;
  const std::function<Status()> holds_;
  const std::shared_ptr<VersionMirror> mirror_;
  VersionPatches patches_;
  uint64_t history_ = 0;  // set by load()

  std::mutex indexMutex_;  // taken before mutex_; guards the file and the members below
  VersionIndex index_;     // as in the file
  bool warned_ = false;    // that it cannot be written

  mutable std::mutex mutex_;  // guards the members below
  VersionLedger ledger_;
  std::map<uint64_t, VersionInfo> infos_;
  std::pair<uint64_t, std::shared_ptr<ReadableFile>> lastRead_;  // of the version that was read last
  std::vector<std::string> unremoved_;                           // files whose removal failed
  std::list<Waiter> waiters_;
  std::optional<Error> ended_;
};

}  // namespace psd

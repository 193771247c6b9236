#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/os/env.h"
#include "common/types/model_layout.h"
#include "common/types/model_spec.h"
#include "server/publish/version_file.h"
#include "server/publish/version_index.h"
#include "server/publish/version_ledger.h"
#include "server/publish/version_mirror.h"
#include "server/publish/version_patches.h"
#include "server/status/daemon_status.h"

namespace psd {

/// What continues the versions of a daemon at another one, besides their files. A value type.
struct VersionsContinuation {
  uint64_t history = 0;       ///< of the next version
  uint64_t wholeHistory = 0;  ///< of a part: VersionInfo::wholeHistory of the next one
  uint64_t highest = 0;       ///< the next version has a larger number
  uint64_t rounds = 0;        ///< of a source: those that all of its shards have made
  uint64_t ahead = 0;         ///< of a part: by how much the number of a version is above that of its round
  std::vector<uint64_t> numbers;                    ///< of the versions that exist, ascending
  std::map<uint64_t, std::chrono::seconds> leases;  ///< by version, how much longer leases keep it
};

/// The published versions of a model: their files, who waits for the next one, and the leases of readers.
///
/// A model that moves to another daemon takes its versions along. At the source they are frozen before the
/// last ones are copied: none is made, removed or leased until they are thawed, or for good once the move is
/// committed. At the target they are hidden from readers until then, and without the model in place they do
/// not survive a restart.
///
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
    /// Whether versions come from adopt(): the folder has copies of another daemon's. Else from publish().
    bool copies = false;
  };

  /// Finds the versions; skips damaged files, with a warning. ErrorCode::invalidArgument if Place::copies is
  /// set and the folder has versions that were published here. Blocks.
  static Result<std::shared_ptr<VersionStore>> open(Place place, VersionLedger::Terms terms);

  /// Replaces the terms, from the next version on.
  void follow(VersionLedger::Terms terms);
  /// Identifies the sequence of versions: a reader that sees another history must not compare numbers.
  /// 0: none has been adopted yet.
  uint64_t history() const { return history_; }

  /// Whether a version with these tensors, which names the versions of `shards` shards, may be published now.
  /// ErrorCode::overloaded.
  Status admits(std::span<const SafetensorsEntry> tensors, size_t shards) const;
  /// Publishes the values as the next version: its file is durable, and at the standby, before any reader
  /// sees it. `info` lacks bytes, and the number unless it is of a part (VersionInfo::parts): then it has the
  /// number of its round, and the version's is larger by what VersionsContinuation::ahead says. A round that
  /// was made again after a crash, with other values than those in the version of that number, begins another
  /// history, and the versions from that number on are removed; with the same values that version stays.
  /// ErrorCode::notReady: versions with larger numbers have moved here. Blocks; called by one thread.
  Result<VersionInfo> publish(VersionInfo info, const VersionContent& content);
  /// Whether adopt() has room for a version of another daemon, in place of those that it may remove.
  /// ErrorCode::overloaded.
  Status admitsCopy(const VersionInfo& info) const;
  /// Takes a version of another daemon, with its number and history: `file` has its bytes, which are
  /// verified. One of another history removes all versions of the history before, leased ones included.
  /// ErrorCode::io if the bytes are damaged or the version is not newer than those of its history that are
  /// here. Blocks; called by one thread.
  /// `patch`: by which the version was made from another one; it is kept if that is the newest here. May be
  /// empty.
  Result<VersionInfo> adopt(const VersionInfo& info, std::span<const std::byte> file,
                            std::span<const std::byte> patch = {});
  /// Removes the versions that no lease keeps any more. Blocks; called by the thread of publish() or adopt().
  void prune();

  /// Ascending.
  std::vector<VersionInfo> versions() const;
  /// Resolves with the newest version once its number is at least `number`, or of another history than at the
  /// call.
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

  // --- Moves, at the source ------------------------------------------------------------------------------

  /// No version is made, removed or leased from now on. `why`: the error for callers that are refused.
  void freeze(Error why);
  /// Ends freeze().
  void thaw();
  /// The versions continue at another daemon: freeze() for good. Blocks for a small file.
  void leave(Error why);
  /// Resolves once lease() does not fail because of freeze(), or at end().
  kj::Promise<void> whenThawed();
  /// Whether whenThawed() waits.
  bool frozen() const;
  /// A version that was written by giveTo().
  struct Given {
    uint64_t number = 0;  ///< 0: there is none
    uint64_t newer = 0;   ///< how many newer ones exist
    std::string path;     ///< of the file
    uint64_t oldest = 0;  ///< the oldest version that exists
  };
  /// Writes the file of the oldest version whose number is above `after` to `to`. One that is missing or
  /// damaged is left out, with a warning, also by continuation(). Blocks; on any thread.
  Result<Given> giveTo(Env& to, uint64_t after);
  VersionsContinuation continuation() const;

  // --- Moves, at the target: blocking calls are made one at a time, while nothing is published -----------

  /// Whether versions may arrive. ErrorCode::invalidArgument: there are versions that were published here.
  Status mayArrive() const;
  /// Hides the versions that have arrived with a move, after a start with a move that is not known to be
  /// committed. Returns whether there are any.
  bool hideUncommitted();
  bool hidden() const { return hidden_; }
  /// Begins an arrival: hides the versions, and removes those of an earlier arrival. `own`: of which
  /// partition of the model the versions have to be. Blocks.
  Status beginArrival(Partition own = {});
  /// Takes a version of the source, with its number and history. Versions older than `oldest` are removed:
  /// the source has removed them. So are the oldest others where there is no room. ErrorCode::overloaded: it
  /// does not fit alone. Blocks.
  Status arrive(std::span<const std::byte> file, uint64_t oldest);
  /// All versions have arrived: they survive a restart from now on, and stay hidden. ErrorCode::overloaded:
  /// some that the source still has found no room. Blocks.
  Status endArrival(const VersionsContinuation& continuation);
  /// Removes the versions of an arrival; no-op without one. After an error they stay hidden: call it again.
  /// Blocks.
  Status cancelArrival();
  /// The move is committed: readers see the versions.
  void show();

  /// Number of versions and leases, each an entry of the status.
  size_t entries() const;
  /// Fills in versions, leases and their bytes.
  void fillStatus(PublishStatus& status) const;

 private:
  struct Waiter {
    uint64_t number = 0, history = 0;
    kj::Own<kj::CrossThreadPromiseFulfiller<Result<VersionInfo>>> fulfiller;
  };

  VersionStore(Place place, VersionLedger::Terms terms)
      : env_(std::move(place.env)),
        folder_(std::move(place.folder)),
        holds_(std::move(place.holds)),
        mirror_(std::move(place.mirror)),
        copies_(place.copies),
        patches_(env_, folder_),
        ledger_(terms) {}

  /// Reads index and files. Called by open().
  Status load(bool hasAll);
  /// Removes the files of an arrival that was not ended. Called by load().
  Status dropArrived(const std::vector<uint64_t>& numbers);
  /// Removes versions that no reader sees. Blocks.
  void dropHidden(const std::vector<uint64_t>& numbers);
  std::vector<uint64_t> ledgerNumbers() const;
  /// Bytes that versions may take beside those that exist.
  uint64_t room() const;
  /// Why no version can be made; the mutex is held.
  Status mayChange() const;
  void endThawWaits();
  /// Reads the index, where there may be files of these versions.
  Status loadIndex(const std::vector<uint64_t>& numbers);
  /// Makes room for a version of `bytes`; returns its number, which is `number` unless that is 0.
  Result<uint64_t> begin(uint64_t bytes, uint64_t number = 0);
  /// What is in memory of a version whose file is complete.
  struct Written {
    std::span<const std::byte> values;  ///< of all tensors, as in the file
    std::span<const std::byte> patch;   ///< that leads to the version; may be empty
  };
  /// Announces a version whose file is complete, once the standby has all changes so far. Removes the file if
  /// the index cannot be written.
  Status complete(const VersionInfo& info, const Written& written);
  /// Removes all versions of the history before. Called by adopt().
  Status beginHistory(uint64_t history);
  /// Prepares the number of a part. Returns the version if it exists already.
  Result<std::optional<VersionInfo>> takeNumber(const VersionInfo& info, const VersionContent& content);
  /// Whether these are the content of a version that exists.
  bool isSame(const VersionInfo& known, const VersionInfo& info, const VersionContent& content) const;
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
  /// it and it has at most half of the version's size. Returns its size.
  uint64_t makePatch(const VersionInfo& info, const Written& written);

  const std::shared_ptr<Env> env_;
  const std::string folder_;
  const std::function<Status()> holds_;
  const std::shared_ptr<VersionMirror> mirror_;
  const bool copies_;
  VersionPatches patches_;
  std::atomic<uint64_t> history_{0};       // set by load() and adopt()
  std::atomic<uint64_t> wholeHistory_{0};  // of a part: VersionInfo::wholeHistory of the next one
  std::atomic<uint64_t> ahead_{0};         // of a part: of its number, see publish()
  std::atomic<uint64_t> arrived_{0};       // VersionIndex::arrived

  std::mutex indexMutex_;  // taken before mutex_; guards the file and the members below
  VersionIndex index_;     // as in the file
  bool warned_ = false;    // that it cannot be written

  mutable std::mutex mutex_;  // guards the members below
  VersionLedger ledger_;
  std::map<uint64_t, VersionInfo> infos_;
  std::pair<uint64_t, std::shared_ptr<ReadableFile>> lastRead_;  // of the version that was read last
  std::vector<std::string> unremoved_;                           // files whose removal failed
  std::set<uint64_t> unreadable_;                                // versions that giveTo() has left out
  std::list<Waiter> waiters_;
  uint64_t announced_ = 0;  // history of the version that was announced last, or found by load(); 0: none
  std::optional<Error> ended_;
  std::optional<Error> frozen_;      // why nothing is made, removed or leased
  bool left_ = false;                // frozen for good
  std::atomic<bool> hidden_{false};  // from readers: they arrive by a move that is not known to be committed
  std::atomic<bool> arriving_{false};  // not all have arrived: the file says so
  Partition arrivesAs_;                // see beginArrival()
  std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> thawWaits_;
};

}  // namespace psd

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/os/env.h"

namespace psd::testing {

/// What a machine finds on its disk after a failure. Synced data is always there; the values differ in what
/// survives of the rest. A file system may do any of them.
enum class Survival {
  syncedOnly,         ///< nothing else
  everything,         ///< everything
  namesWithoutData,   ///< names, but not the bytes that were not synced
  namesWithZeros,     ///< names and lengths, zeros for the bytes
  namesWithHalfData,  ///< names, and of each file the first half of the bytes
  namesWithLateData,  ///< names and lengths, zeros for the first half of the bytes, the second half as
                      ///< written
  dataWithoutNames,   ///< bytes of files whose names were synced, no other name
};
inline constexpr Survival kSurvivals[] = {Survival::syncedOnly,        Survival::everything,
                                          Survival::namesWithoutData,  Survival::namesWithZeros,
                                          Survival::namesWithHalfData, Survival::namesWithLateData,
                                          Survival::dataWithoutNames};

/// A disk in memory that records every operation and can fail, end its process or lose power at any of them.
/// Paths are plain strings; "/" and "." exist from the start. Thread-safe.
class MemoryEnv final : public Env {
 public:
  MemoryEnv();

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status truncate(const std::string& path, uint64_t bytes) override;
  Status createFolder(const std::string& folder) override;
  Status removeFolder(const std::string& folder) override;
  Result<std::vector<std::string>> list(const std::string& folder) override;
  Result<bool> exists(const std::string& path) override;
  Status syncFolder(const std::string& folder) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path) override;

  /// Every operation that changes the disk or makes a change durable, in order: "append /a/file 512".
  std::vector<std::string> operations() const;
  /// Power fails, or the process dies, in operation `number` (from 0). An append has by then written
  /// `appended` sixteenths of its bytes. Every later operation fails.
  void crashAt(uint64_t number, unsigned appended = 0);
  bool crashed() const;
  /// The machine restarts. Files that were open stay unusable; operations count from 0.
  void restart(Survival survival);
  /// A process replaces one that died on a machine that kept running: it finds everything as written, synced
  /// or not. Unsynced data can still be lost with the power.
  void restartProcess();

  /// Until healed, each operation whose name ("append", "create", …) is in `which` fails with `reason`; an
  /// append has by then written half of its bytes. An empty set: every operation that writes. "exists",
  /// "list", "open" and "read" fail only by name. Data of a failed sync can be read until the power fails,
  /// and no later sync makes it durable.
  /// `skip`: that many of them succeed first, reads aside.
  void fail(std::set<std::string> which, std::string reason, uint64_t skip = 0);
  /// Until healed, the read operations with the numbers [first, first + count), counted from now, fail.
  void failReads(uint64_t first, uint64_t count, std::string reason);
  void heal();
  /// The number of operations that have failed since failReads().
  uint64_t failedReads() const;
  /// A folder and its content vanish, as if another process had removed it.
  void vanish(const std::string& folder);

  /// A file's bytes, "" if it does not exist.
  std::string bytes(const std::string& path) const;
  /// The bytes of all files, by path.
  std::map<std::string, std::string> files() const;
  /// Puts a file on the disk, synced.
  void put(const std::string& path, const std::string& bytes);

 private:
  friend class MemoryReadableFile;
  friend class MemoryWritableFile;

  struct Inode {
    std::string bytes, synced;
    std::vector<std::pair<size_t, size_t>> forgotten;  // from, to: ranges that failed syncs did not write

    /// The bytes that can become durable.
    std::string reachable() const;
  };
  using Names = std::map<std::string, std::shared_ptr<Inode>>;  // null: a folder

  /// Counts the operation; returns the error that it must end with, if any.
  std::optional<Error> enter(const std::string& name, const std::string& path,
                             const std::string& detail = "");
  /// Returns the error that a read operation must end with, if any.
  std::optional<Error> enterRead(const std::string& name, const std::string& path);
  Status append(uint64_t life, const std::string& path, Inode& inode, std::span<const std::byte> bytes);
  Status sync(uint64_t life, const std::string& path, Inode& inode);
  Status inPlace(const std::string& path, const Inode* inode) const;
  static Error error(const std::string& path, const std::string& what, const std::string& reason);
  bool hasFolder(const std::string& folder) const;
  void beginLife();

  mutable std::mutex mutex_;
  Names live_, durable_;
  std::vector<std::string> operations_;
  std::optional<uint64_t> crashAt_;
  unsigned crashAppended_ = 0;
  bool crashed_ = false;
  uint64_t life_ = 0;  // number of machine starts: files of an earlier life are dead
  std::set<std::string> failing_;
  std::optional<std::string> failure_;
  uint64_t skip_ = 0, skipped_ = 0;
  struct FailingReads {
    uint64_t next = 0, first = 0, last = 0, failed = 0;
    std::string reason;
  } reads_;
  std::shared_ptr<std::set<std::string>> locks_ = std::make_shared<std::set<std::string>>();
};

}  // namespace psd::testing

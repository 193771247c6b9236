#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/os/env.h"
#include "server/checkpoint/durability_config.h"
#include "server/replica/folder_record.h"

namespace psd {

/// Whose state the folder of what is saved has, in a file there, for a process that goes on from it.
/// Thread-safe.
class FolderMark final {
 public:
  /// `env` outlives it.
  FolderMark(Env& env, const DurabilityConfig& durability, DaemonId me)
      : env_(env), durability_(durability), me_(me) {}

  /// What is saved from now on is of a primary, this daemon, in that epoch.
  void setEpoch(uint64_t epoch);
  /// What is in the folder now is so, and nobody else's: a mark tells it, to last. Nothing where one does so
  /// already, before setEpoch(), and where nothing is saved. Blocks.
  Status write();
  /// write(), where a mark of an epoch before tells of what is there. Blocks.
  Status renew();
  /// What is in the folder is of this daemon while it follows another one in that epoch. Blocks.
  Status writeAsStandby(uint64_t epoch);
  /// Another copy is followed, which is not in the folder yet: renew() then ignores the mark of
  /// writeAsStandby().
  void followAnother();
  /// Whose state the folder has, if a start would use it. Blocks.
  SavedFolder read() const;

 private:
  Status write(const FolderRecord& mark) const;
  std::string path() const;

  Env& env_;
  const DurabilityConfig durability_;
  const DaemonId me_;
  std::mutex mutex_;                 // guards what follows, and one who writes
  uint64_t epoch_ = 0, marked_ = 0;  // that is to be written; that is there
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/os/env.h"
#include "server/checkpoint/durability_config.h"
#include "server/replica/folder_record.h"

namespace psd {

/// The file in the data folder that records whose state the folder holds, for a process that resumes from it.
/// Thread-safe.
class FolderMark final {
 public:
  /// `env` must outlive this object.
  FolderMark(Env& env, const DurabilityConfig& durability, DaemonId me)
      : env_(env), durability_(durability), me_(me) {}

  /// From now on this daemon saves as the primary of term `term`.
  void setTerm(uint64_t term);
  /// Durably marks the folder's content as that of this primary in its term. No-op if it is marked so
  /// already, before setTerm(), and without durability. Blocks.
  Status write();
  /// write() if the folder carries a mark of an earlier term. Blocks.
  Status renew();
  /// Durably marks the folder's content as that of this daemon as a standby in term `term`. Blocks.
  Status writeAsStandby(uint64_t term);
  /// The daemon now follows another copy, which is not in the folder yet: renew() ignores the mark that
  /// writeAsStandby() wrote.
  void followAnother();
  /// Whose state the folder holds, if a start would resume from it. Blocks.
  SavedFolder read() const;

 private:
  Status write(const FolderRecord& mark) const;
  std::string path() const;

  Env& env_;
  const DurabilityConfig durability_;
  const DaemonId me_;
  std::mutex mutex_;                    // guards the members below and serializes writes
  uint64_t term_ = 0, markedTerm_ = 0;  // the term to write; the term in the file, 0: none
};

}  // namespace psd

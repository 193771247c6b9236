#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/replica/cluster_view.h"
#include "server/replica/replication_rules.h"

namespace psd {

/// The origin of a folder's saved state, as its primary.json says. A value type.
struct FolderRecord {
  DaemonId daemon;        ///< the process that saved it; 0: the record is unreadable
  uint64_t term = 0;      ///< its term as primary, or the term that it followed as standby; 0: unknown
  bool standby = false;   ///< saved as a standby (and later, if it took over, as primary)
  bool complete = false;  ///< contains every answered push
  bool operator==(const FolderRecord&) const = default;
};

/// The saved state that a daemon would start from. A value type.
struct SavedFolder {
  std::optional<FolderRecord> record;  ///< nothing: no state of a replica set, or durability is off
  bool chosen = false;                 ///< the operator chose the state (durability.resume)
};

/// How long a daemon with `folder` waits for another one to start the run after `run`, before it starts that
/// run itself, so that no answered push is lost. Nothing: it waits for a daemon with a newer folder, or for
/// an operator.
///
///  - The folder of the last primary in the last term has all of it: no wait.
///  - That of the standby that the document named last has it, too, if pushes waited for its disk: twice
///    `alone`, in which the primary would have started.
///  - A state that the operator chose: no wait.
///  - A folder without state starts the run only if the last primary saved nothing. Otherwise the daemon that
///    has the state would follow this run and replace its own.
///  - If the document is a guess from a folder, another folder may have more: an operator decides.
std::optional<std::chrono::nanoseconds> startDelay(const EndedRun& run, const SavedFolder& folder,
                                                   const ReplicationRules& rules);

/// Whether the run of the document, in which a daemon serves, continues the folder's state, or the folder has
/// none. Otherwise the run started without that state, and following would replace it.
bool continuesFolder(const ClusterView& plan, const SavedFolder& folder);

/// What a daemon writes if there is no document, so that no daemon starts without the state of its folder.
EndedRun asEndedRun(const FolderRecord& record, DaemonId me);

/// Whether the guess `one` describes later state than the guess `other`.
bool isNewer(const EndedRun& one, const EndedRun& other);

/// Whether the folder is that of the recorded primary, or of its standby.
bool savedByPrimary(const FolderRecord& record, DaemonId primary, uint64_t term);
bool savedByStandby(const FolderRecord& record, const std::optional<DaemonId>& standby);

}  // namespace psd

#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/replica/group_rules.h"
#include "server/replica/plan_view.h"

namespace psd {

/// Whose state a folder has, as its primary.json says. A value type.
struct FolderRecord {
  DaemonId daemon;     ///< the process that saved it; 0: the record cannot be read
  uint64_t epoch = 0;  ///< in which it was the primary; of a standby, the one that it followed; 0: not known
  bool standby = false;   ///< saved by a standby, and by that process as primary after that
  bool complete = false;  ///< every push that was answered is in it
  bool operator==(const FolderRecord&) const = default;
};

/// The state that a daemon would begin with. A value type.
struct SavedFolder {
  std::optional<FolderRecord> record;  ///< nothing: the folder has no state of a group, or nothing is saved
  bool chosen = false;                 ///< the operator said what to begin with (durability.resume)
};

/// How long a daemon over `folder` waits for another one to begin, before it begins the run after `run`
/// itself, so that no answered push is lost. Nothing: it waits for a daemon with a newer folder, or for an
/// operator.
///
///  - The folder of the last primary in the last epoch has all of it: at once.
///  - That of the standby that the plan names to the end has, too, where pushes waited for its disk: after
///    twice `alone`, in which the primary's would have begun.
///  - A state that the operator has chosen begins at once.
///  - A folder without state begins only if the last primary saved nothing: else the daemon with the state
///    would follow that run and replace its own.
///  - Where the plan is a guess from a folder, another folder may have more: an operator decides.
std::optional<std::chrono::nanoseconds> beginsAfter(const EndedRun& run, const SavedFolder& folder,
                                                    const GroupRules& rules);

/// Whether the run of the plan, in which a daemon serves, continues the folder's state, or the folder has
/// none. Else the run began without that state, and following would replace it.
bool leadsOn(const PlanView& plan, const SavedFolder& folder);

/// What a daemon writes if there is no plan, so that no daemon begins without the state of its folder.
EndedRun asEndedRun(const FolderRecord& record, DaemonId me);

/// Of two guesses, whether `one` is of later state than `other`.
bool isNewer(const EndedRun& one, const EndedRun& other);

/// Whether the folder is that of the plan's primary, or of its standby.
bool isOfPrimary(const FolderRecord& record, DaemonId primary, uint64_t epoch);
bool isOfStandby(const FolderRecord& record, const std::optional<DaemonId>& standby);

}  // namespace psd

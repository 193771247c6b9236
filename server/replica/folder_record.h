#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "server/replica/group_rules.h"
#include "server/replica/plan_view.h"

namespace psd {

/// What a folder of saved state says of whose state it has. A value type.
struct FolderRecord {
  DaemonId daemon;     ///< the process that saved it; 0: the record cannot be read
  uint64_t epoch = 0;  ///< in which it was the primary; of a standby, the one that it followed; 0: not known
  bool standby = false;   ///< saved by a standby, and by that process as primary after that
  bool complete = false;  ///< every push that was answered is in it
  bool operator==(const FolderRecord&) const = default;
};

/// What a daemon begins with where it is to serve. A value type.
struct SavedFolder {
  std::optional<FolderRecord> record;  ///< nothing: the folder has no state of a group, or nothing is saved
  bool chosen = false;                 ///< the operator said what to begin with (durability.resume)
};

/// How long nobody else may have begun before a daemon over `folder` begins a run after `run`, so that no
/// answered push is lost. Nothing: it waits for one with a better right, or for an operator.
///
///  - The folder of the last primary in the last epoch has all of it: at once.
///  - That of the standby that the plan names to the end has, too, where pushes waited for its disk: after
///    twice `alone`, in which the primary's would have begun.
///  - What the operator has chosen is begun with at once.
///  - A folder without state begins another run only where the last primary saved nothing: else that run
///    would be followed by who has the state of the one before.
///  - Where the plan is a guess from a folder, another folder may have more: an operator decides.
std::optional<std::chrono::nanoseconds> beginsAfter(const EndedRun& run, const SavedFolder& folder,
                                                    const GroupRules& rules);

/// Whether the plan, in which a daemon serves, leads on from the folder's state, or from nothing: else its
/// run began without that state, and who follows would replace it.
bool leadsOn(const PlanView& plan, const SavedFolder& folder);

/// What a daemon writes down where there is no plan, so that nobody begins without what its folder has.
EndedRun asEndedRun(const FolderRecord& record, DaemonId me);

/// Of two guesses, whether `one` is of later state than `other`.
bool isNewer(const EndedRun& one, const EndedRun& other);

/// Whether the folder is that of the plan's primary, or of its standby.
bool isOfPrimary(const FolderRecord& record, DaemonId primary, uint64_t epoch);
bool isOfStandby(const FolderRecord& record, const std::optional<DaemonId>& standby);

}  // namespace psd

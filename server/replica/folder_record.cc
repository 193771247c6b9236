#include "server/replica/folder_record.h"

#include <algorithm>
#include <utility>

namespace psd {

bool savedByPrimary(const FolderRecord& record, DaemonId primary, uint64_t term) {
  return record.daemon != DaemonId{} && record.daemon == primary && (record.standby || record.term == term);
}

bool savedByStandby(const FolderRecord& record, const std::optional<DaemonId>& standby) {
  return record.standby && record.complete && standby == record.daemon;
}

std::optional<std::chrono::nanoseconds> startDelay(const EndedRun& run, const SavedFolder& folder,
                                                   const ReplicationRules& rules) {
  using std::chrono::nanoseconds;
  if (folder.chosen) return nanoseconds(0);
  if (run.guessed()) return std::nullopt;
  if (!folder.record) return run.saved ? std::nullopt : std::optional(rules.absence);
  if (savedByPrimary(*folder.record, run.primary, run.term)) return nanoseconds(0);
  if (savedByStandby(*folder.record, run.standby)) return 2 * rules.alone;
  return std::nullopt;
}

bool continuesFolder(const ClusterView& plan, const SavedFolder& folder) {
  if (folder.chosen || !folder.record) return true;
  const FolderRecord& record = *folder.record;
  // A term may have several standbys, one after the other.
  if (record.standby) return record.term <= plan.term;
  // A term has one primary.
  return record.term < plan.term || savedByPrimary(record, plan.primary, plan.term);
}

EndedRun asEndedRun(const FolderRecord& record, DaemonId me) {
  const bool readable = record.daemon != DaemonId{};
  return {
      .term = std::max<uint64_t>(record.term, 1),
      .primary = readable ? record.daemon : me,
      .standby = {},
      .saved = true,
      .source = readable && !record.standby ? DocumentSource::primaryFolder : DocumentSource::standbyFolder};
}

bool isNewer(const EndedRun& one, const EndedRun& other) {
  const auto rank = [](const EndedRun& some) {
    return std::pair(some.term, some.source == DocumentSource::primaryFolder);
  };
  return rank(one) > rank(other);
}

}  // namespace psd

#include "server/replica/folder_record.h"

#include <algorithm>
#include <utility>

namespace psd {

bool isOfPrimary(const FolderRecord& record, DaemonId primary, uint64_t epoch) {
  return record.daemon != DaemonId{} && record.daemon == primary && (record.standby || record.epoch == epoch);
}

bool isOfStandby(const FolderRecord& record, const std::optional<DaemonId>& standby) {
  return record.standby && record.complete && standby == record.daemon;
}

std::optional<std::chrono::nanoseconds> beginsAfter(const EndedRun& run, const SavedFolder& folder,
                                                    const GroupRules& rules) {
  using std::chrono::nanoseconds;
  if (folder.chosen) return nanoseconds(0);
  if (run.guessed()) return std::nullopt;
  if (!folder.record) return run.saved ? std::nullopt : std::optional(rules.absence);
  if (isOfPrimary(*folder.record, run.primary, run.epoch)) return nanoseconds(0);
  if (isOfStandby(*folder.record, run.standby)) return 2 * rules.alone;
  return std::nullopt;
}

bool leadsOn(const PlanView& plan, const SavedFolder& folder) {
  if (folder.chosen || !folder.record) return true;
  const FolderRecord& record = *folder.record;
  // A term may have several standbys, one after the other.
  if (record.standby) return record.epoch <= plan.epoch;
  // A term has one primary.
  return record.epoch < plan.epoch || isOfPrimary(record, plan.primary, plan.epoch);
}

EndedRun asEndedRun(const FolderRecord& record, DaemonId me) {
  const bool readable = record.daemon != DaemonId{};
  return {.epoch = std::max<uint64_t>(record.epoch, 1),
          .primary = readable ? record.daemon : me,
          .standby = {},
          .saved = true,
          .source = readable && !record.standby ? PlanSource::primaryFolder : PlanSource::standbyFolder};
}

bool isNewer(const EndedRun& one, const EndedRun& other) {
  const auto rank = [](const EndedRun& some) {
    return std::pair(some.epoch, some.source == PlanSource::primaryFolder);
  };
  return rank(one) > rank(other);
}

}  // namespace psd

#include "server/status/daemon_status.h"

#include <set>
#include <string_view>

namespace psd {

bool DaemonStatus::hasSeveralGroups() const {
  std::set<std::string_view> names;
  for (const ShardStatus& each : shards) names.insert(each.group);
  for (const RowShardStatus& each : rowShards) names.insert(each.group);
  for (const RoundsStatus& each : rounds) names.insert(each.group);
  return names.size() > 1;
}

}  // namespace psd

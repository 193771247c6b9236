#include "server/policy/update_policy.h"

namespace psd {

std::vector<Shard*> PolicyScope::shards() const {
  std::vector<Shard*> mine;
  for (size_t i = 0; i < store.shardCount(); i++) {
    if (store.shard(i).range().group == group) mine.push_back(&store.shard(i));
  }
  return mine;
}

std::vector<RowShard*> PolicyScope::rowShards() const {
  std::vector<RowShard*> mine;
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    if (store.rowShard(i).group() == group) mine.push_back(&store.rowShard(i));
  }
  return mine;
}

}  // namespace psd

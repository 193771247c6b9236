#include "server/policy/update_policy.h"

namespace psd {

std::vector<Shard*> PolicyScope::shards() const {
  std::vector<Shard*> mine;
  for (size_t i = 0; i < store.shardCount(); i++) {
    if (store.shard(i).range().group == group) mine.push_back(&store.shard(i));
  }
  return mine;
}

}  // namespace psd

#include "server/policy/update_policy.h"

#include <utility>

#include "server/policy/store_promise.h"

namespace psd {

std::vector<Shard*> PolicyScope::shards() const {
  std::vector<Shard*> mine;
  for (size_t i = 0; i < store.shardCount(); i++) {
    if (store.shard(i).range().group == group) mine.push_back(&store.shard(i));
  }
  return mine;
}

kj::Promise<Result<Version>> UpdatePolicy::pullTo(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                                  std::span<float> onDevice) {
  return this->pull(shard, lane, pull, offset, onDevice.size())
      .then([&shard, &lane, onDevice](Result<PullAnswer> answer) -> kj::Promise<Result<Version>> {
        if (!answer.ok()) return Result<Version>(answer.error());
        auto put = storePromise<Status>(shard, [&](ShardStorage::Done done) {
          shard.storage().put(lane, answer->view.values, onDevice, std::move(done));
        });
        return put.then([answer = *std::move(answer)](const Status& status) -> Result<Version> {
          if (!status.ok()) return status.error();
          return answer.version;
        });
      });
}

}  // namespace psd

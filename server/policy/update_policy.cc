#include "server/policy/update_policy.h"

#include <utility>

#include <fmt/format.h>

#include "server/policy/store_promise.h"

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

kj::Promise<Result<PushAnswer>> UpdatePolicy::pushDifference(Shard&, Lane&, ShardPush&, uint64_t, Gradient) {
  return Result<PushAnswer>(
      ErrorCode::invalidArgument,
      fmt::format("policy {} takes no differences from a bridge, as its rounds count every update", name()));
}

kj::Promise<Result<PushAnswer>> UpdatePolicy::pushRows(RowShard&, ShardPush&, uint64_t, RowGradient) {
  return Result<PushAnswer>(noRows());
}

kj::Promise<Result<RowsAnswer>> UpdatePolicy::pullRows(RowShard&, const std::optional<TrainerRef>&, RowIds,
                                                       std::span<float>) {
  return Result<RowsAnswer>(noRows());
}

kj::Promise<Result<RoundDue>> UpdatePolicy::roundDue(SessionId, Version) {
  return Result<RoundDue>(ErrorCode::invalidArgument,
                          fmt::format("policy {} has no rounds with a grace period", name()));
}

Error UpdatePolicy::noRows() const {
  return {ErrorCode::invalidArgument, fmt::format("policy {} is not for embedding tables", name())};
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

kj::Promise<Result<FormedGroup>> UpdatePolicy::formAveragingGroup(SessionId, uint64_t,
                                                                  const AveragingMember&) {
  return Result<FormedGroup>(ErrorCode::invalidArgument, "under policy " + std::string(name()) +
                                                             " trainers do not form averaging groups");
}

}  // namespace psd

// The side of Sync that makes an update of a round.

#include "server/policy/store_promise.h"
#include "server/policy/sync.h"

namespace psd {

kj::Promise<Result<uint64_t>> Sync::applyRound(std::shared_ptr<const Ended> round) {
  auto apply = [this, round](Result<SquaredDistances> distances) -> kj::Promise<Result<uint64_t>> {
    if (!distances.ok()) return Result<uint64_t>(distances.error());
    std::vector<uint32_t> samples;
    for (const auto& contribution : round->contributions) samples.push_back(contribution->samples);
    Combination combination = options_.aggregator->combine(samples, *distances);
    if (options_.clip.value) combination.change.limit = static_cast<float>(*options_.clip.value);
    if (!options_.clip.norm) return applyShards(round, std::move(combination), 0);
    return addSquares(round, combination, 0, 0)
        .then([this, round, combination](Result<double> square) mutable -> kj::Promise<Result<uint64_t>> {
          if (!square.ok()) return Result<uint64_t>(square.error());
          combination.change.scale = static_cast<float>(options_.clip.scale(*square));
          return applyShards(round, std::move(combination), 0);
        });
  };
  if (!options_.aggregator->needsDistances()) return apply(SquaredDistances());
  return addDistances(round, SquaredDistances(round->contributions.size()), 0).then(kj::mv(apply));
}

Sync::Gradients Sync::gradientsOf(const Ended& round, size_t shard) {
  auto gradients = std::make_shared<std::vector<StagedGradient>>();
  for (const auto& contribution : round.contributions) gradients->push_back(contribution->shards[shard]);
  return gradients;
}

kj::Promise<Result<SquaredDistances>> Sync::addDistances(std::shared_ptr<const Ended> round,
                                                         SquaredDistances sum, size_t next) {
  if (next == shards_.size()) return Result<SquaredDistances>(std::move(sum));
  Shard& shard = *shards_[next];
  auto gradients = gradientsOf(*round, next);
  return storePromise<Result<SquaredDistances>>(shard,
                                                [&](ShardStorage::DistancesDone done) {
                                                  shard.storage().squaredDistances(
                                                      *lanes_[shard.device()], *gradients, std::move(done));
                                                })
      .then([this, round, gradients, sum = std::move(sum),
             next](Result<SquaredDistances> part) mutable -> kj::Promise<Result<SquaredDistances>> {
        if (!part.ok()) return part;
        sum += *part;
        return addDistances(round, std::move(sum), next + 1);
      });
}

kj::Promise<Result<double>> Sync::addSquares(std::shared_ptr<const Ended> round, Combination combination,
                                             double sum, size_t next) {
  if (next == shards_.size()) return Result<double>(sum);
  Shard& shard = *shards_[next];
  auto gradients = gradientsOf(*round, next);
  return storePromise<Result<double>>(shard,
                                      [&](ShardStorage::SquareDone done) {
                                        shard.storage().combinedSquare(*lanes_[shard.device()], *gradients,
                                                                       combination, std::move(done));
                                      })
      .then([this, round, gradients, combination, sum,
             next](Result<double> part) mutable -> kj::Promise<Result<double>> {
        if (!part.ok()) return part;
        return addSquares(round, std::move(combination), sum + *part, next + 1);
      });
}

kj::Promise<Status> Sync::applyShard(std::shared_ptr<const Ended> round, const Combination& combination,
                                     size_t index, ByteBudget::Lease room) {
  Shard& shard = *shards_[index];
  const UpdateScalars scalars = shard.scalars(shard.beginUpdateAlone());
  if (!shard.logs()) return update(index, round, combination, scalars);
  return updateLogged(index, round, combination, scalars, std::move(room));
}

kj::Promise<Result<uint64_t>> Sync::applyShards(std::shared_ptr<const Ended> round, Combination combination,
                                                size_t next) {
  Shard& shard = *shards_[next];
  return shard.roomToLog(shard.range().count * sizeof(float))
      .then([this, &shard, round, combination, next](ByteBudget::Lease room) {
        return shard.lock().acquire().then(
            [this, &shard, round, combination, next, room = std::move(room)](ShardLock::Guard guard) mutable {
              return applyShard(round, combination, next, std::move(room))
                  .then([&shard, guard = kj::mv(guard)](Status status) {
                    return status.ok() ? Result<uint64_t>(shard.logged()) : Result<uint64_t>(status.error());
                  });
            });
      })
      .then([this, round, combination, next](Result<uint64_t> logged) -> kj::Promise<Result<uint64_t>> {
        if (logged.ok()) {
          if (next + 1 == shards_.size()) return logged;
          return applyShards(round, combination, next + 1);
        }
        // This shard and the shards after it stay behind the rounds' count, or every gradient would seem
        // late.
        const std::lock_guard lock(mutex_);
        for (size_t i = next; i < shards_.size(); i++) first_[i]--;
        return logged;
      });
}

kj::Promise<Status> Sync::update(size_t index, std::shared_ptr<const Ended> round,
                                 const Combination& combination, const UpdateScalars& scalars) {
  Shard& shard = *shards_[index];
  auto gradients = gradientsOf(*round, index);
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().applyCombined(*lanes_[shard.device()], *gradients,
                                                              combination, scalars, std::move(done));
                              })
      .then([this, index, round, gradients, scalars](Status status) {
        if (status.ok()) endUpdate(index, *round, {scalars, std::span<const float>(), {}}, {});
        return status;
      });
}

kj::Promise<Status> Sync::updateLogged(size_t index, std::shared_ptr<const Ended> round,
                                       const Combination& combination, const UpdateScalars& scalars,
                                       ByteBudget::Lease room) {
  Shard& shard = *shards_[index];
  auto gradients = gradientsOf(*round, index);
  return storePromise<Result<ReadView>>(shard,
                                        [&](ShardStorage::ReadDone done) {
                                          shard.storage().combine(*lanes_[shard.device()], *gradients,
                                                                  combination, std::move(done));
                                        })
      .then([this, &shard, gradients, scalars, round, index,
             room = std::move(room)](Result<ReadView> combined) mutable -> kj::Promise<Status> {
        if (!combined.ok()) return combined.status();
        const Gradient gradient = combined->values;
        return storePromise<Status>(shard,
                                    [&](ShardStorage::Done done) {
                                      shard.storage().apply(*lanes_[shard.device()], 0, gradient, scalars,
                                                            std::move(done));
                                    })
            .then([this, index, round, scalars, gradient, owner = combined->owner,
                   room = std::move(room)](Status status) mutable {
              if (status.ok()) endUpdate(index, *round, {scalars, gradient, {}}, std::move(room));
              return status;
            });
      });
}

void Sync::endUpdate(size_t index, const Ended& round, AppliedUpdate update, ByteBudget::Lease room) {
  std::vector<UpdateSource> sources;
  for (const auto& contribution : round.contributions) {
    const TrainerRef& trainer = contribution->trainer;
    sources.push_back({trainer.rank, contribution->samples, trainer.incarnation, contribution->step,
                       Version{static_cast<uint64_t>(first_[index]) + *contribution->round}, 0});
  }
  update.sources = sources;
  if (shards_.size() > 1) {
    update.part = index + 1 < shards_.size() ? UpdatePart::goesOn : UpdatePart::last;
  }
  shards_[index]->endUpdate(update, std::move(room));
}

}  // namespace psd

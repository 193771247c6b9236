#include "server/policy/recorded_hogwild.h"

#include <utility>

#include "server/policy/shard_reads.h"
#include "server/policy/shard_updates.h"

namespace psd {

RecordedHogwild::RecordedHogwild(const PolicyScope& scope, const Modifiers& modifiers)
    : staging_(scope.staging), staleness_(modifiers.staleness), rows_(scope, modifiers) {}

kj::Promise<void> RecordedHogwild::join(const TrainerRef& trainer) {
  turns_.join(trainer.session);
  return rows_.join(trainer);
}

kj::Promise<void> RecordedHogwild::leave(SessionId session) {
  turns_.leave(session);
  return rows_.leave(session);
}

kj::Promise<Result<PushAnswer>> RecordedHogwild::push(Shard& shard, Lane& lane, ShardPush& push,
                                                      uint64_t offset, Gradient gradient) {
  return takeSlice(*staging_, shard, push, offset, gradient, false,
                   [this, &shard, &lane](WholeShard whole) { return apply(shard, lane, std::move(whole)); });
}

kj::Promise<Result<PushAnswer>> RecordedHogwild::apply(Shard& shard, Lane& lane, WholeShard whole) {
  const SessionId session = whole.session;
  const uint64_t bytes = whole.gradient.bytes().size() + whole.source.bytesToLog();
  return turns_.inTurn(session, shard, bytes,
                       [this, &shard, &lane, whole = std::move(whole)](ByteBudget::Lease space) mutable {
                         return shareLock(shard, lane, std::move(whole), std::move(space));
                       });
}

kj::Promise<Result<PushAnswer>> RecordedHogwild::shareLock(Shard& shard, Lane& lane, WholeShard whole,
                                                           ByteBudget::Lease space) {
  return shard.lock().acquireShared().then([this, &shard, &lane, whole = std::move(whole),
                                            space = std::move(space)](ShardLock::Guard guard) mutable {
    return applySharing(shard, lane, std::move(whole), std::move(space))
        .then([guard = kj::mv(guard)](Result<PushAnswer> answer) { return answer; });
  });
}

kj::Promise<Result<PushAnswer>> RecordedHogwild::applySharing(Shard& shard, Lane& lane, WholeShard whole,
                                                              ByteBudget::Lease space) {
  const uint64_t staleness = whole.source.staleness = stalenessOf(shard, whole.source.basis);
  if (staleness_.tooOld(staleness)) {
    return Result<PushAnswer>(PushAnswer{PushOutcome::stale, shard.version(), staleness});
  }
  auto lacking = shard.lacking(whole.source);
  if (lacking.empty()) return Result<PushAnswer>(PushAnswer{PushOutcome::late, shard.version(), staleness});
  UpdateScalars update =
      shard.scalars(shard.version().value + 1, staleness_.factor(staleness), whole.source.hyperparameters);
  update.races = true;
  return applyTo(shard, lane, whole.gradient, {}, update, std::move(lacking))
      .then([&shard, whole = std::move(whole), update,
             space = std::move(space)](Status status) mutable -> Result<PushAnswer> {
        if (!status.ok()) return status.error();
        const auto [made, logged] = shard.endRacingUpdate(whole.update(update), std::move(space));
        return PushAnswer{PushOutcome::applied, made, whole.source.staleness, 1, logged};
      });
}

kj::Promise<Result<PullAnswer>> RecordedHogwild::pull(Shard& shard, Lane& lane, ShardPull&, uint64_t offset,
                                                      uint64_t count) {
  return pullLive(shard, lane, offset, count);
}

kj::Promise<Result<PushAnswer>> RecordedHogwild::pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                                          RowGradient slice) {
  return rows_.pushRows(shard, push, first, std::move(slice));
}

kj::Promise<Result<RowsAnswer>> RecordedHogwild::pullRows(RowShard& shard,
                                                          const std::optional<TrainerRef>& trainer,
                                                          RowIds rows, std::span<float> out) {
  return rows_.pullRows(shard, trainer, std::move(rows), out);
}

}  // namespace psd

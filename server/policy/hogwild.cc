#include "server/policy/hogwild.h"

#include "server/policy/recorded_hogwild.h"
#include "server/policy/row_updates.h"
#include "server/policy/shard_reads.h"
#include "server/policy/store_promise.h"
#include "server/store/rows/row_blocks.h"

namespace psd {

PolicyPlan Hogwild::read(ConfigReader in) {
  const Modifiers modifiers = readModifiers(
      in, {.delayCompensation = "needs the weights that each trainer pulled, which are unknown while updates "
                                "race with reads; use locked or bounded_staleness",
           .clipNorm = "needs the whole gradient before any of it is applied; use locked or "
                       "bounded_staleness, or clip.value"});
  return {[modifiers](const PolicyScope& scope) -> std::unique_ptr<UpdatePolicy> {
            if (scope.recorded) return std::make_unique<RecordedHogwild>(scope, modifiers);
            return std::make_unique<Hogwild>(modifiers, scope.staging);
          },
          modifiers.changesGradients(), modifiers.changesRates()};
}

Hogwild::Hogwild(const Modifiers& modifiers, std::shared_ptr<StagingPool> staging)
    : staging_(std::move(staging)), staleness_(modifiers.staleness) {
  if (modifiers.clip.value) change_.limit = static_cast<float>(*modifiers.clip.value);
}

void Hogwild::begin(ParameterBlock& block, ShardPush& push) const {
  if (push.number != 0 || push.dropped) return;
  // The trainer of a part without rows has not read the block, so its basis is meaningless.
  push.staleness = push.total == 0 ? 0 : stalenessOf(block, push.basis);
  push.dropped = staleness_.tooOld(push.staleness);
  if (!push.dropped) push.number = block.beginUpdate();
}

PushAnswer Hogwild::dropped(const ParameterBlock& block, const ShardPush& push) {
  const bool whole = push.arrived.covered() == push.total;
  return {whole ? PushOutcome::stale : PushOutcome::received, block.version(), push.staleness};
}

kj::Promise<Result<PushAnswer>> Hogwild::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                              Gradient gradient) {
  begin(shard, push);
  if (push.dropped) return Result<PushAnswer>(dropped(shard, push));
  const UpdateScalars update = scalarsOf(shard, push);
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().applyChanged(lane, offset, gradient, change_, update,
                                                             std::move(done));
                              })
      .then([&shard, &push, count = gradient.size()](Status status) -> Result<PushAnswer> {
        if (!status.ok()) return status.error();
        push.taken += count;
        if (push.taken < push.total) {
          return PushAnswer{PushOutcome::received, shard.version(), push.staleness};
        }
        shard.notePushed(push.hyperparameters.get());
        return PushAnswer{PushOutcome::applied, shard.endUpdate(), push.staleness, 1};
      });
}

kj::Promise<Result<PushAnswer>> Hogwild::pushRows(RowShard& shard, ShardPush& push, uint64_t /*first*/,
                                                  RowGradient slice) {
  begin(shard, push);
  if (push.dropped) return Result<PushAnswer>(dropped(shard, push));
  std::span<const float> gradients = slice.values.values();
  std::shared_ptr<float> decoded;
  if (slice.values.codec()) {
    auto room = acquireForGradient(*staging_, slice.values.size());
    if (!room.ok()) return Result<PushAnswer>(room.error());
    decoded = *std::move(room);
    const std::span<float> place(decoded.get(), slice.values.size());
    decodeRows(*slice.values.codec(), rowBlocks(shard, slice.rows.runs), slice.values.bytes(), place);
    gradients = place;
  }
  StagedRows part{slice.rows, gradients, decoded};
  if (shard.lacks(slice.rows)) return createAndApplyRows(shard, push, std::move(part), std::move(slice.rows));
  const std::vector<size_t> missed =
      shard.applyRacing(part.rows, part.gradients, rowChange(), scalarsOf(shard, push));
  if (missed.empty()) return endRows(shard, push, slice.rows);
  // Rows that were evicted between the check and the update are created again.
  const uint64_t applied = slice.rows.ids.size() - missed.size();
  return createAndApplyRows(shard, push, shard.rowsAt(part, missed), std::move(slice.rows), applied);
}

RowChange Hogwild::rowChange() const { return {.scale = change_.scale, .limit = change_.limit}; }

UpdateScalars Hogwild::scalarsOf(const ParameterBlock& block, const ShardPush& push) const {
  UpdateScalars scalars = block.scalars(push.number, staleness_.factor(push.staleness), push.hyperparameters);
  scalars.races = true;
  return scalars;
}

kj::Promise<Result<PushAnswer>> Hogwild::createAndApplyRows(RowShard& shard, ShardPush& push, StagedRows part,
                                                            RowIds slice, uint64_t applied) {
  return shard.lock()
      .acquire()
      .then([this, &shard, &push, part = std::move(part), applied](ShardLock::Guard) -> Status {
        auto prepared = shard.turnover().prepare(part, shard.version());
        // If the slice is partially applied, the rest counts as an update that lost a race: an error would
        // make the trainer repeat the slice, and all of it would be applied again.
        if (!prepared.ok() && applied == 0) return prepared.status();
        if (!prepared.ok()) return {};
        return shard.update(*prepared, rowChange(), scalarsOf(shard, push), shard.version());
      })
      .then([&shard, &push, slice](const Status& status) -> kj::Promise<Result<PushAnswer>> {
        if (!status.ok()) return Result<PushAnswer>(status.error());
        return endRows(shard, push, slice);
      });
}

kj::Promise<Result<PushAnswer>> Hogwild::endRows(RowShard& shard, ShardPush& push, const RowIds& slice) {
  if (Status state = shard.state(); !state.ok()) return Result<PushAnswer>(state.error());
  push.taken += slice.ids.size();
  if (push.taken < push.total) {
    return Result<PushAnswer>(PushAnswer{PushOutcome::received, shard.version(), push.staleness});
  }
  shard.notePushed(push.hyperparameters.get());
  const Result<PushAnswer> answer(PushAnswer{PushOutcome::applied, shard.endUpdate(), push.staleness, 1});
  if (!shard.turnover().sweeps()) return answer;
  return shard.lock().acquire().then([&shard, slice, answer](ShardLock::Guard) {
    shard.turnover().evictDue(answer->version.value, slice);
    return answer;
  });
}

kj::Promise<Result<RowsAnswer>> Hogwild::pullRows(RowShard& shard, const std::optional<TrainerRef>&,
                                                  RowIds rows, std::span<float> out) {
  return readRows(shard, rows, out);
}

kj::Promise<Result<PullAnswer>> Hogwild::pull(Shard& shard, Lane& lane, ShardPull&, uint64_t offset,
                                              uint64_t count) {
  return pullLive(shard, lane, offset, count);
}

}  // namespace psd

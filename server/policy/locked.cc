#include "server/policy/locked.h"

#include <utility>

#include "server/store/squared_norm.h"

namespace psd {

PolicyPlan Locked::read(ConfigReader in) {
  const Modifiers modifiers = readModifiers(in);
  return {
      .make = [modifiers](const PolicyScope& scope) { return std::make_unique<Locked>(scope, modifiers); },
      .changesGradients = modifiers.changesGradients(),
      .changesRates = modifiers.changesRates(),
      .tablesUnsupported = modifiers.tablesUnsupported(),
      .needsWholeGradient = modifiers.needsWholeGradient()};
}

Locked::Locked(const PolicyScope& scope, const Modifiers& modifiers)
    : modifiers_(modifiers),
      staging_(scope.staging),
      blocks_(scope.blockCount()),
      pulled_(scope.snapshots),
      snapshots_(scope.snapshots) {}

kj::Promise<void> Locked::join(const TrainerRef& trainer) {
  pulled_.admit(trainer.session);
  turns_.join(trainer.session);
  const std::lock_guard lock(mutex_);
  steps_[trainer.session];
  return kj::READY_NOW;
}

kj::Promise<void> Locked::leave(SessionId session) {
  pulled_.forget(session);
  turns_.leave(session);
  const std::lock_guard lock(mutex_);
  steps_.erase(session);
  return kj::READY_NOW;
}

kj::Promise<Result<PushAnswer>> Locked::push(Shard& shard, Lane& lane, ShardPush& push, uint64_t offset,
                                             Gradient gradient) {
  const bool together = modifiers_.clip.norm.has_value();
  return takeSlice(*staging_, shard, push, offset, gradient, together,
                   [this, &shard, &lane, &push, together](WholeShard part) {
                     Whole whole = gatheredShard(shard, std::move(part));
                     if (!together) return apply(shard, lane, std::move(whole), 1);
                     const double square = squaredNorm(whole.part.gradient.values());
                     return applyTogether(
                         shard, push, square,
                         [this, &shard, &lane, whole = std::move(whole)](double scale) mutable {
                           return apply(shard, lane, std::move(whole), scale);
                         });
                   });
}

Locked::Whole Locked::gatheredShard(const Shard& shard, WholeShard part) {
  Whole whole{std::move(part), nullptr};
  if (modifiers_.delay.lambda != 0) {
    whole.pulled = pulled_.find(whole.part.session, shard.range().id, whole.part.source.basis);
  }
  return whole;
}

kj::Promise<Result<PushAnswer>> Locked::apply(Shard& shard, Lane& lane, Whole whole, double scale) {
  // Without a log to wait for, joins the lock's queue immediately.
  if (!shard.logs()) return applyInTurn(shard, lane, std::move(whole), scale, {});
  const SessionId session = whole.part.session;
  const uint64_t bytes = whole.part.gradient.bytes().size() + whole.part.source.bytesToLog();
  return turns_.inTurn(
      session, shard, bytes,
      [this, &shard, &lane, whole = std::move(whole), scale](ByteBudget::Lease space) mutable {
        return applyInTurn(shard, lane, std::move(whole), scale, std::move(space));
      });
}

kj::Promise<Result<PushAnswer>> Locked::applyInTurn(Shard& shard, Lane& lane, Whole whole, double scale,
                                                    ByteBudget::Lease space) {
  return shard.lock().acquire().then([this, &shard, &lane, whole = std::move(whole), scale,
                                      space = std::move(space)](ShardLock::Guard guard) mutable {
    return applyUnderLock(shard, lane, std::move(whole), scale, std::move(space))
        .then([guard = kj::mv(guard)](Result<PushAnswer> answer) { return answer; });
  });
}

Locked::Admitted Locked::admit(ParameterBlock& block, UpdateSource& source) const {
  const uint64_t staleness = source.staleness = stalenessOf(block, source.basis);
  if (modifiers_.staleness.tooOld(staleness)) {
    return {.refused = PushAnswer{PushOutcome::stale, block.version(), staleness}};
  }
  auto lacking = block.pushed().lacking(source);
  if (lacking.empty()) return {.refused = PushAnswer{PushOutcome::late, block.version(), staleness}};
  const uint64_t number = block.beginExclusiveUpdate();
  return {block.scalars(number, modifiers_.staleness.factor(staleness), source.hyperparameters),
          std::move(lacking),
          {}};
}

kj::Promise<Result<PushAnswer>> Locked::applyUnderLock(Shard& shard, Lane& lane, Whole whole, double scale,
                                                       ByteBudget::Lease space) {
  auto [update, lacking, refused] = admit(shard, whole.part.source);
  if (refused) return Result<PushAnswer>(*refused);
  GradientChange change{.scale = static_cast<float>(scale)};
  if (modifiers_.clip.value) change.limit = static_cast<float>(*modifiers_.clip.value);
  // A gradient of staleness 0 needs no compensation, but its square enters the adaptive mean.
  if (whole.pulled && (whole.part.source.staleness > 0 || modifiers_.delay.adaptive)) {
    change.pulled = whole.pulled->view.values;
    change.lambda = static_cast<float>(modifiers_.delay.lambda);
    change.adaptive = modifiers_.delay.adaptive;
  }
  return applyTo(shard, lane, whole.part.gradient, change, update, std::move(lacking))
      .then([&shard, whole = std::move(whole), update = update,
             space = std::move(space)](Status status) mutable -> Result<PushAnswer> {
        if (!status.ok()) return status.error();
        const Version made = shard.endUpdate(whole.part.update(update), std::move(space));
        return PushAnswer{PushOutcome::applied, made, whole.part.source.staleness, 1, shard.logged()};
      });
}

std::optional<Locked::Parts> Locked::add(SessionId session, Step step, Part part, size_t known) {
  const std::lock_guard lock(mutex_);
  const auto trainer = steps_.find(session);
  if (trainer == steps_.end()) return {};
  auto& steps = trainer->second;
  steps.erase(steps.begin(), steps.lower_bound(step));  // older steps are abandoned
  Parts& parts = steps[step];
  parts.push_back(std::move(part));
  if (parts.size() + known < blocks_) return Parts();
  return std::move(steps.extract(step).mapped());
}

kj::Promise<Result<PushAnswer>> Locked::applyTogether(
    const ParameterBlock& block, ShardPush& push, double square,
    kj::Function<kj::Promise<Result<PushAnswer>>(double scale)> apply) {
  auto answer = kj::newPromiseAndCrossThreadFulfiller<Result<PushAnswer>>();
  const Result<PushAnswer> received(PushAnswer{PushOutcome::received, block.version(), 0});
  std::optional<Parts> parts =
      add(push.trainer.session, push.step, {square, kj::mv(apply), kj::mv(answer.fulfiller)}, push.known);
  if (!parts) return Result<PushAnswer>(PushAnswer{PushOutcome::late, block.version(), 0});
  push.pendingAnswer = kj::mv(answer.promise);
  double sum = 0;
  for (const Part& part : *parts) sum += part.square;
  const double scale = modifiers_.clip.scale(sum);
  auto applied = kj::heapArrayBuilder<kj::Promise<void>>(parts->size());
  for (Part& part : *parts) {
    // Evaluated eagerly: joined promises release nothing until the last one is ready, and a push that held
    // one shard's lock while it waits for another could deadlock with a second push.
    applied.add(part.apply(scale)
                    .then([answer = kj::mv(part.answer)](Result<PushAnswer> outcome) mutable {
                      answer->fulfill(std::move(outcome));
                    })
                    .eagerlyEvaluate(nullptr));
  }
  return kj::joinPromises(applied.finish()).then([received] { return received; });
}

kj::Promise<Result<PullAnswer>> Locked::pull(Shard& shard, Lane& lane, ShardPull& pull, uint64_t offset,
                                             uint64_t count) {
  auto answer = pullSnapshot(*snapshots_, shard, lane, pull, offset, count);
  if (modifiers_.delay.lambda == 0 || !pull.trainer) return answer;
  return answer.then([this, &shard, session = pull.trainer->session](Result<PullAnswer> answer) {
    if (answer.ok()) pulled_.note(session, shard.range().id, snapshotOf(*answer));
    return answer;
  });
}

// --- Table rows --------------------------------------------------------------------------------------

kj::Promise<Result<PushAnswer>> Locked::pushRows(RowShard& shard, ShardPush& push, uint64_t first,
                                                 RowGradient slice) {
  if (!push.gatheredRows.empty() || !shard.logs()) return gatherRowsOf(shard, push, first, slice);
  // Backpressure: while gradients wait for a slow disk, no further gradients are gathered.
  return shard.reserveLogSpace(0).then([this, &shard, &push, first, slice](ByteBudget::Lease) {
    return gatherRowsOf(shard, push, first, slice);
  });
}

kj::Promise<Result<PushAnswer>> Locked::gatherRowsOf(RowShard& shard, ShardPush& push, uint64_t first,
                                                     const RowGradient& slice) {
  const bool together = modifiers_.clip.norm.has_value();
  auto gathered = gatherRows(*staging_, shard, push, first, slice,
                             together ? RowRetention::copied : RowRetention::inPlace);
  if (!gathered.ok()) return Result<PushAnswer>(gathered.error());
  if (!*gathered) return Result<PushAnswer>(PushAnswer{PushOutcome::received, shard.version(), 0});
  WholeRows whole = **std::move(gathered);
  if (!together) return applyRows(shard, std::move(whole), 1);
  const double square = squaredNorm(whole.staged.gradients);
  return applyTogether(shard, push, square, [this, &shard, whole = std::move(whole)](double scale) mutable {
    return applyRows(shard, std::move(whole), scale);
  });
}

kj::Promise<Result<PushAnswer>> Locked::applyRows(RowShard& shard, WholeRows whole, double scale) {
  const SessionId session = whole.session;
  const uint64_t bytes = whole.staged.bytes() + whole.source.bytesToLog();
  PushTurns::Apply apply = [this, &shard, whole = std::move(whole), scale](ByteBudget::Lease space) mutable {
    return shard.lock().acquire().then(
        [this, &shard, whole = std::move(whole), scale, space = std::move(space)](ShardLock::Guard) mutable {
          return applyRowsUnderLock(shard, std::move(whole), scale, std::move(space));
        });
  };
  // Without a log to wait for, joins the lock's queue immediately.
  if (!shard.logs()) return apply({});
  return turns_.inTurn(session, shard, bytes, kj::mv(apply));
}

Result<PushAnswer> Locked::applyRowsUnderLock(RowShard& shard, WholeRows whole, double scale,
                                              ByteBudget::Lease space) {
  // The trainer of a part without rows has not read the shard, so its basis is meaningless.
  if (whole.staged.rows.ids.empty()) whole.source.basis = shard.version();
  const auto [update, lacking, refused] = admit(shard, whole.source);
  if (refused) return *refused;
  RowChange change{.scale = static_cast<float>(scale)};
  if (modifiers_.clip.value) change.limit = static_cast<float>(*modifiers_.clip.value);
  const bool all = lacking.front().count == shard.range().count;
  const StagedRows part = all ? whole.staged : shard.rowsIn(whole.staged, lacking);
  const Version next{update.number};
  shard.turnover().evictDue(next.value, part.rows);
  PSD_ASSIGN_OR_RETURN(PreparedRows prepared, shard.turnover().prepare(part, next));
  PSD_RETURN_IF_ERROR(shard.update(prepared, change, update, next));
  const Version made = shard.endUpdate({.scalars = update,
                                        .gradient = prepared.part.gradients,
                                        .sources = {&whole.source, 1},
                                        .rows = prepared.part.rows,
                                        .beside = prepared.beside()},
                                       std::move(space));
  return PushAnswer{PushOutcome::applied, made, whole.source.staleness, 1, shard.logged()};
}

kj::Promise<Result<RowsAnswer>> Locked::pullRows(RowShard& shard, const std::optional<TrainerRef>&,
                                                 RowIds rows, std::span<float> out) {
  return readRowsUnderLock(shard, rows, out);
}

}  // namespace psd

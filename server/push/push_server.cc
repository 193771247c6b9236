#include "server/push/push_server.h"

#include <utility>

#include <fmt/format.h>
#include <kj/debug.h>
#include <kj/vector.h>

#include "server/model/slice_checks.h"
#include "server/policy/differences.h"
#include "server/policy/policy_capabilities.h"

namespace psd {
namespace {

std::vector<uint32_t> groupsOf(const ParameterStore& store) {
  std::vector<uint32_t> groups;
  for (size_t i = 0; i < store.blockCount(); i++) groups.push_back(store.block(i).group());
  return groups;
}

/// The number of row shards if dense and row gradients are pushed separately, else 0.
size_t rowShardsApart(const ServedModel& model) {
  return model.policyOf(model.store->block(0))->averaging() ? model.store->rowShardCount() : 0;
}

kj::Promise<void> whenChanged(StepPush& step) {
  auto pair = kj::newPromiseAndFulfiller<void>();
  auto fulfiller = std::make_shared<kj::Own<kj::PromiseFulfiller<void>>>(kj::mv(pair.fulfiller));
  step.watch([fulfiller] { (*fulfiller)->fulfill(); });
  return kj::mv(pair.promise);
}

/// Collects the pending answers from the parts of a step and adds their shards to `waited`. Resolves once
/// each of these parts has its outcome.
kj::Promise<void> collectOutcomes(StepPush& step, std::vector<uint32_t>& waited) {
  // A policy drops its pending answer when the trainer is lost.
  const auto givenUp = [](kj::Exception&&) {
    return Result<PushAnswer>(ErrorCode::sessionEnded, "the trainer was lost before its push was applied");
  };
  kj::Vector<kj::Promise<void>> outcomes;
  for (uint32_t i = 0; i < step.parts.size(); i++) {
    const auto& part = step.parts[i];
    if (!part) continue;
    KJ_IF_MAYBE (later, part->push.pendingAnswer) {
      outcomes.add(later->catch_(givenUp).then(
          [part](Result<PushAnswer> outcome) { part->outcome = std::move(outcome); }));
      part->push.pendingAnswer = nullptr;
      waited.push_back(i);
    }
  }
  return kj::joinPromises(outcomes.releaseAsArray());
}

}  // namespace

std::shared_ptr<PushServer> PushServer::make(ProcessId process, std::shared_ptr<EventLoop> home,
                                             std::shared_ptr<ServedModel> model,
                                             std::shared_ptr<SessionCounters> counters, const Saved& saved,
                                             StepOutcomes& outcomes) {
  auto end = [](PushServer* server) {
    std::unique_ptr<PushServer> owned(server);
    const std::shared_ptr<EventLoop> home = server->home_;
    // Once the home thread has ended, no other thread accesses what it owned.
    if (home->isHere() || !home->running()) return;
    home->executor()
        .executeAsync([owned = std::move(owned)]() mutable { owned = nullptr; })
        .detach([](kj::Exception&&) {});
  };
  return {new PushServer(process, std::move(home), std::move(model), std::move(counters), saved, outcomes),
          end};
}

PushServer::PushServer(ProcessId process, std::shared_ptr<EventLoop> home, std::shared_ptr<ServedModel> model,
                       std::shared_ptr<SessionCounters> counters, const Saved& saved, StepOutcomes& outcomes)
    : process_(process),
      home_(std::move(home)),
      model_(std::move(model)),
      counters_(std::move(counters)),
      outcomes_(outcomes),
      ledger_(groupsOf(*model_->store), home_->underWay(),
              {.fragments = home_->config().groups.back().policy.local.streams(),
               .rowShards = rowShardsApart(*model_)}),
      meter_(home_->environment().counters, *counters_) {
  for (uint32_t shard = 0; shard < saved.size(); shard++) {
    if (saved[shard].empty()) continue;
    const auto policy = model_->policyOf(model_->store->block(shard));
    ledger_.restore(shard, saved[shard], policy->properties().completesPushes);
  }
}

template <class Work>
auto PushServer::runAtHome(Work work) -> decltype(work()) {
  if (home_->isHere()) return work();
  return home_->request(std::move(work));
}

template <class Work>
void PushServer::postToHome(Work work) {
  if (home_->running()) home_->executor().executeAsync(std::move(work)).detach([](kj::Exception&&) {});
}

kj::Promise<PushReply> PushServer::push(PushSlice slice, const Limits& limits) {
  if (auto status = check(slice, limits); !status.ok()) return refused(status.error());
  return runAtHome([self = shared_from_this(), slice = std::move(slice)]() mutable {
    return self->arrive(std::move(slice));
  });
}

Status PushServer::check(const PushSlice& slice, const Limits& limits) const {
  const SliceHead& head = slice.head;
  const auto checkCarried = [&]() -> Status {
    if (!head.hyperparameters) return {};
    if (!takesTrainersOptimizer(home_->config().groups)) return hyperparametersRefused();
    return checkHyperparameters(*model_, head.shard, *head.hyperparameters);
  };
  if (slice.rows) {
    const RowIds rows = slice.rows->view();
    PSD_RETURN_IF_ERROR(
        checkRows(*model_, limits, head.shard, rows, slice.gradient.size(), head.offset, head.total));
    PSD_RETURN_IF_ERROR(checkCarried());
    return checkRowGradient(*model_, head.shard, head.offset, rows, slice.gradient);
  }
  PSD_RETURN_IF_ERROR(checkSlice(*model_, limits, head.shard, head.offset, head.count, head.total));
  PSD_RETURN_IF_ERROR(checkCarried());
  if (slice.ring) return {};  // checked after the copy
  return checkGradient(*model_, slice.head.shard, slice.head.offset, slice.gradient);
}

PushReply PushServer::refused(const Error& error) const {
  countRefusal(home_->environment().counters, error);
  return {error};
}

kj::Promise<void> PushServer::whenPushesDrained() {
  return runAtHome([self = shared_from_this()] { return self->whenIdleHere(); });
}

void PushServer::beginSession(TrainerRef trainer) {
  postToHome([self = shared_from_this(), trainer] {
    self->trainer_ = trainer;
    self->ledger_.beginSession();
  });
}

void PushServer::endSession() {
  postToHome([self = shared_from_this()] { self->ledger_.endSession(); });
}

void PushServer::drop(Step step) {
  postToHome([self = shared_from_this(), step] { self->ledger_.drop(step); });
}

// --- Path of a slice ---------------------------------------------------------------------------------

kj::Promise<PushReply> PushServer::arrive(PushSlice slice) {
  if (slice.ring) {
    Shard& shard = model_->store->shard(slice.head.shard);
    const bool toDevice = takesDeviceGradient(slice);
    return continueCopied(rings_.take(model_, home_->laneFor(model_, shard), toDevice, std::move(slice)));
  }
  if (ledger_.begins(slice.head.step)) {
    KJ_IF_MAYBE (opened, home_->gate().closed()) {
      return waitAtGate(std::move(slice), kj::mv(*opened));
    }
  }
  return lookUp(std::move(slice));
}

kj::Promise<PushReply> PushServer::waitAtGate(PushSlice slice, kj::Promise<void> opened) {
  underWay();
  return opened.then([this, slice = std::move(slice)]() mutable { return arrive(std::move(slice)); })
      .attach(kj::defer([self = shared_from_this()] { self->endInFlight(); }));
}

kj::Promise<PushReply> PushServer::continueCopied(kj::Promise<Result<PushSlice>> copied) {
  underWay();
  return copied
      .then([this](Result<PushSlice> slice) -> kj::Promise<PushReply> {
        if (!slice.ok()) return refused(slice.error());
        return arrive(*std::move(slice));
      })
      .attach(kj::defer([self = shared_from_this()] { self->endInFlight(); }));
}

kj::Promise<PushReply> PushServer::lookUp(PushSlice slice) {
  if (home_->environment().serving.updates() == ServingView::Updates::none) {
    return refused({ErrorCode::shuttingDown, "the daemon is shutting down"});
  }
  KJ_IF_MAYBE (again, answerRepeated(slice)) {
    return again->attach(shared_from_this());
  }
  // The slice may have waited in flight or at the gate. If its session has ended, nothing would close what it
  // starts; and a reconnected trainer, which resends unanswered slices, must not overtake the earlier ones.
  if (const Status holds = slice.attachment.check(); !holds.ok()) return refused(holds.error());
  if (ledger_.sessionEnded()) return refused({ErrorCode::sessionEnded, "the trainer's session has ended"});
  // The gradient was copied to the device for another policy; this one takes host memory only.
  if (slice.gradient.onDevice() && !takesDeviceGradient(slice)) {
    Shard& shard = model_->store->shard(slice.head.shard);
    auto waits = ledger_.waits(slice.head.step);  // prevents later steps from overtaking it
    return continueCopied(RingIntake::copy(model_, home_->laneFor(model_, shard), false, std::move(slice)))
        .attach(kj::mv(waits));
  }
  const auto step = ledger_.unfinishedClosedStep(slice.head.step);
  if (step || ledger_.overtakes(slice.head.step)) {
    // Slices that this one would overtake, and that are not blocked, are queued before it.
    auto changed = step ? whenChanged(*step) : kj::evalLater([] {});
    auto waits = ledger_.waits(slice.head.step);
    return lookUpAfter(kj::mv(changed), std::move(slice), std::move(waits)).attach(shared_from_this());
  }
  return take(std::move(slice));
}

kj::Maybe<kj::Promise<PushReply>> PushServer::answerRepeated(PushSlice& slice) {
  using Known = PushLedger::Known;
  PushLedger::Lookup found = ledger_.find(slice.head);
  switch (found.known) {
    case Known::nothing: return nullptr;
    case Known::over:
      // A sample assigner restored from a checkpoint may not know the outcome.
      if (const auto applied = ledger_.appliedBefore(slice.head.step))
        reportOutcome(slice.head.step, *applied);
      return repeated(slice.head.shard, *found.answer);
    case Known::received: return repeated(slice.head.shard, *found.answer);
    case Known::refused: return kj::Promise<PushReply>(PushReply{*found.answer});
    case Known::undecided:
      slice.turn = nullptr;
      slice.held = nullptr;  // the policy has the slice, and the wait may be long
      return onceDecided(std::move(found.step), slice.head.shard);
    case Known::withPolicy: break;
  }
  // Once the policy is done with the slices from before the trainer was lost, they are discarded and this one
  // is taken.
  auto waits = found.step->closed() ? ledger_.waits(slice.head.step) : nullptr;
  return lookUpAfter(whenChanged(*found.step), std::move(slice), std::move(waits));
}

kj::Promise<PushReply> PushServer::lookUpAfter(kj::Promise<void> changed, PushSlice slice,
                                               std::shared_ptr<const void> waits) {
  slice.turn = nullptr;
  return changed.then([this, slice = std::move(slice), waits = std::move(waits)]() mutable {
    waits = nullptr;
    return lookUp(std::move(slice));
  });
}

kj::Promise<PushReply> PushServer::onceDecided(std::shared_ptr<StepPush> step, uint32_t shard) {
  auto changed = whenChanged(*step);
  return changed.then([this, step = std::move(step), shard]() mutable -> kj::Promise<PushReply> {
    const auto decided = ledger_.decided(*step, shard);
    if (!decided) return onceDecided(std::move(step), shard);
    if (decided->known == PushLedger::Known::refused) return PushReply{*decided->answer};
    return repeated(shard, *decided->answer);
  });
}

kj::Promise<PushReply> PushServer::repeated(uint32_t shard, const Result<PushAnswer>& answer) {
  meter_.repeated();
  return whenDurable(shard, {answer});
}

kj::Promise<PushReply> PushServer::take(PushSlice slice) {
  if (ofBridge() && slice.head.hyperparameters) return refused(hyperparametersRefused());
  auto admitted = ledger_.admit(slice.head, !home_->environment().serving.draining());
  if (!admitted.ok()) return refused(admitted.error());
  slice.turn = nullptr;
  auto [step, part, completion] = *std::move(admitted);
  const uint32_t shardIndex = slice.head.shard;
  if (!part->policy) {
    part->push.trainer = trainer_;
    part->policy = home_->policyOf(model_, model_->store->block(shardIndex));
    part->live = !ofBridge() && part->policy->properties().appliesSlices;
  }
  underWay();
  home_->underWay().slicesProcessing++;
  return handOver(*part, slice)
      .attach(kj::defer([home = home_] { home->underWay().slicesProcessing--; }))
      .then([this, step = step, part = part, completion = completion,
             slice = std::move(slice)](Result<PushAnswer> answer) mutable {
        ledger_.answered(*step, slice.head, answer);
        if (answer.ok()) meter_.taken(slice);
        slice.held = nullptr;
        return settle(step, slice.head.shard, completion, std::move(answer));
      })
      .then([this, step = step, shardIndex, completion = completion](PushReply reply) {
        close(step, step->completedBy(completion), reply);
        return whenDurable(shardIndex, std::move(reply));
      })
      .attach(kj::mv(step), kj::defer([self = shared_from_this()] { self->endInFlight(); }));
}

kj::Promise<Result<PushAnswer>> PushServer::handOver(PartPush& part, const PushSlice& slice) {
  const SliceHead& head = slice.head;
  ParameterStore& store = *model_->store;
  const ParameterBlock& block = store.block(head.shard);
  if (!ofBridge() && !block.acceptsBasis(head.basis)) {  // computed before a trainer restored a state
    const bool whole = part.push.arrived.covered() == part.push.total;
    return Result<PushAnswer>(PushAnswer{whole ? PushOutcome::stale : PushOutcome::received, block.version(),
                                         stalenessOf(block, head.basis)});
  }
  if (slice.rows) {
    RowShard& shard = store.rowShard(head.shard - store.shardCount());
    return KJ_ASSERT_NONNULL(part.policy->rows())
        .pushRows(shard, part.push, head.offset, {slice.rows->view(), slice.gradient});
  }
  Shard& shard = store.shard(head.shard);
  Lane& lane = home_->laneFor(model_, shard);
  if (!ofBridge()) return part.policy->push(shard, lane, part.push, head.offset, slice.gradient);
  if (block.optimizer().derivesWeights()) {  // a trainer's: that of the configuration is refused when joining
    return Result<PushAnswer>(
        ErrorCode::invalidArgument,
        fmt::format("optimizer {} takes no differences from a bridge, as weights are a function of its state",
                    block.optimizer().name()));
  }
  if (part.policy->properties().takesDifferences) {
    return takeDifference(*model_->staging, shard, lane, part.push, head.offset, slice.gradient);
  }
  return Result<PushAnswer>(
      ErrorCode::invalidArgument,
      fmt::format("policy {} takes no differences from a bridge, as its rounds count every update",
                  part.policy->name()));
}

kj::Promise<PushReply> PushServer::settle(std::shared_ptr<StepPush> step, uint32_t shard, uint64_t completion,
                                          Result<PushAnswer> last) {
  if (!step->completedBy(completion)) return PushReply{std::move(last)};
  if (step->unanswered > 0) {
    auto changed = whenChanged(*step);
    return changed.then([this, step = std::move(step), shard, completion, last = std::move(last)]() mutable {
      return settle(std::move(step), shard, completion, std::move(last));
    });
  }
  std::vector<uint32_t> waited;
  auto outcomes = collectOutcomes(*step, waited);
  return outcomes.then([this, step = std::move(step), shard, last = std::move(last),
                        waited = std::move(waited)] { return ledger_.conclude(*step, shard, last, waited); });
}

void PushServer::close(const std::shared_ptr<StepPush>& step, bool settles, const PushReply& reply) {
  if (settles) step->outcome = reply.answer;
  if (ledger_.closeIfOver(step)) {
    meter_.over(*step);
    reportOutcome(step->number, ledger_.applied(*step));
    step->changed();
  }
  meter_.answered(reply.answer);
}

kj::Promise<PushReply> PushServer::whenDurable(uint32_t shard, PushReply reply) const {
  if (!reply.answer.ok()) return reply;
  return model_->store->block(shard)
      .whenDurable(reply.answer->logged)
      .then([reply = std::move(reply)]() mutable { return std::move(reply); });
}

// --- Helpers -----------------------------------------------------------------------------------------

bool PushServer::takesDeviceGradient(const PushSlice& slice) const {
  if (ofBridge()) return false;
  const auto step = ledger_.begun(slice.head.step);
  const PartPush* part = step ? step->parts[slice.head.shard].get() : nullptr;
  const auto& policy = part ? part->policy : home_->policyOf(model_, model_->store->block(slice.head.shard));
  return policy->properties().takesDeviceGradients;
}

void PushServer::reportOutcome(Step step, bool applied) {
  if (outcomes_.wanted() && !ofBridge()) home_->detach(outcomes_.tell(process_, step, applied));
}

void PushServer::underWay() {
  inFlight_++;
  meter_.waits();
}

void PushServer::endInFlight() {
  meter_.waitEnded();
  if (--inFlight_ != 0) return;
  for (auto& waiting : idleWaiters_) waiting->fulfill();
  idleWaiters_.clear();
}

kj::Promise<void> PushServer::whenIdleHere() {
  if (inFlight_ == 0) return kj::READY_NOW;
  auto pair = kj::newPromiseAndFulfiller<void>();
  idleWaiters_.push_back(kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

}  // namespace psd

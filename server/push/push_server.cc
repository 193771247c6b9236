#include "server/push/push_server.h"

#include <algorithm>
#include <string>

#include "server/model/slice_checks.h"

namespace psd {
namespace {

// In which the slices of a shard may lie: each takes memory until it is joined to its neighbours.
constexpr size_t kPiecesMax = 4096;

}  // namespace

std::shared_ptr<PushServer> PushServer::make(LifeId life, std::shared_ptr<EventLoop> home,
                                             std::shared_ptr<ServedModel> model,
                                             std::shared_ptr<SessionCounters> counters, const Saved& saved) {
  auto end = [](PushServer* server) {
    std::unique_ptr<PushServer> owned(server);
    const std::shared_ptr<EventLoop> home = server->home_;
    // Once the home's thread has ended, nobody else can touch what it owned.
    if (home->isHere() || !home->running()) return;
    home->executor()
        .executeAsync([owned = std::move(owned)]() mutable { owned = nullptr; })
        .detach([](kj::Exception&&) {});
  };
  std::shared_ptr<PushServer> server(
      new PushServer(life, std::move(home), std::move(model), std::move(counters)), end);
  for (uint32_t shard = 0; shard < saved.size(); shard++) {
    if (!saved[shard].empty()) server->recall(shard, saved[shard]);
  }
  return server;
}

PushServer::PushServer(LifeId life, std::shared_ptr<EventLoop> home, std::shared_ptr<ServedModel> model,
                       std::shared_ptr<SessionCounters> counters)
    : life_(life),
      home_(std::move(home)),
      model_(std::move(model)),
      counters_(std::move(counters)),
      newest_(model_->store->shardCount()),
      ofShards_(model_->store->shardCount()) {}

void PushServer::recall(uint32_t shard, const std::vector<AppliedPush>& saved) {
  const auto byStep = [](const AppliedPush& a, const AppliedPush& b) { return a.step < b.step; };
  const AppliedPush& newest = *std::max_element(saved.begin(), saved.end(), byStep);
  const bool completes = model_->policyOf(model_->store->shard(shard))->completesPushes();
  newest_[shard] = completes ? std::min_element(saved.begin(), saved.end(), byStep)->step : newest.step;
  AnsweredPushes<PushAnswer>& answers = ofShards_[shard];
  const uint64_t before =
      std::min({newest.step.value - 1, AppliedPush::kBefore, uint64_t{answers.kMost - 1}});
  for (uint64_t back = before + 1; back-- > 0;) {
    const Step step{newest.step.value - back};
    // What is before a range's newest push and not in it was dropped, and is not to be applied after it.
    const bool dropped = std::any_of(saved.begin(), saved.end(), [&](const AppliedPush& range) {
      return step <= range.step && !holds(range, step);
    });
    const bool awaited =
        std::any_of(saved.begin(), saved.end(), [&](const AppliedPush& range) { return range.step < step; });
    if (awaited && completes && !dropped) continue;
    const bool applied = !dropped && !awaited;
    answers.add(step, {applied ? PushOutcome::applied : PushOutcome::late, newest.version,
                       applied && back == 0 ? newest.staleness : 0});
  }
}

template <class Work>
auto PushServer::atHome(Work work) -> decltype(work()) {
  if (home_->isHere()) return work();
  return home_->request(std::move(work));
}

template <class Work>
void PushServer::postHome(Work work) {
  if (home_->running()) home_->executor().executeAsync(std::move(work)).detach([](kj::Exception&&) {});
}

kj::Promise<PushReply> PushServer::push(PushSlice slice, const Limits& limits) {
  if (auto status = check(slice, limits); !status.ok()) return refused(status.error());
  return atHome([self = shared_from_this(), slice = std::move(slice)]() mutable {
    return self->pushHere(std::move(slice));
  });
}

kj::Promise<void> PushServer::whenLanded() {
  return atHome([self = shared_from_this()] { return self->whenLandedHere(); });
}

void PushServer::beginSession(TrainerRef trainer) {
  postHome([self = shared_from_this(), trainer] {
    self->trainer_ = trainer;
    self->ended_ = false;
  });
}

void PushServer::endSession() {
  postHome([self = shared_from_this()] { self->endSessionHere(); });
}

void PushServer::drop(Step step) {
  postHome([self = shared_from_this(), step] { self->dropped_.add(step, {PushOutcome::late}); });
}

void PushServer::endSessionHere() {
  ended_ = true;
  for (auto& [number, step] : steps_) {
    if (!step->complete) abandon(*step);
  }
}

void PushServer::abandon(StepPush& step) {
  step.close();  // nobody waits for the rest
  for (const auto& part : step.parts) {
    if (part) part->abandoned = true;
  }
  letGo(step);
}

void PushServer::letGo(StepPush& step) {
  if (step.complete) return;
  for (uint32_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (!part || !part->abandoned || part->unanswered > 0 || part->policy->readsLive()) continue;
    // What was applied, or is with the policy and will be, is to be known again. Nothing else will reach the
    // model.
    if (ofShards_[shard].find(step.number) || handedOver(step, shard)) continue;
    step.arrived -= part->arrived.covered();
    step.parts[shard] = nullptr;
  }
}

bool PushServer::handedOver(const StepPush& step, uint32_t shard) const {
  const ParameterStore& store = *model_->store;
  for (uint32_t i = 0; i < step.parts.size(); i++) {
    if (store.shard(i).range().group != store.shard(shard).range().group) continue;
    const auto& part = step.parts[i];
    if (!part || part->refused || part->arrived.covered() < store.shard(i).range().count) return false;
  }
  return true;
}

Status PushServer::check(const PushSlice& slice, const Limits& limits) const {
  PSD_RETURN_IF_ERROR(checkSlice(*model_, limits, slice.shard, slice.offset, slice.gradient.size()));
  if (slice.ring) return {};  // the copy will be checked
  return checkGradient(slice.shard, slice.offset, slice.gradient);
}

std::optional<PushAnswer> PushServer::known(Step step, uint32_t shard) const {
  const PushAnswer* found = ofShards_[shard].find(step);
  if (!found) found = dropped_.find(step);
  if (!found) return std::nullopt;
  PushAnswer answer = *found;
  answer.updates = 0;  // counted when it was first answered
  return answer;
}

kj::Promise<PushReply> PushServer::repeated(uint32_t shard, const PushAnswer& answer) {
  home_->environment().counters.repeatedSlices.add();
  return whenDurable(shard, {answer});
}

kj::Promise<PushReply> PushServer::onceDecided(std::shared_ptr<StepPush> step, uint32_t shard) {
  auto changed = step->whenChanged();
  return changed.then([this, step = std::move(step), shard]() mutable -> kj::Promise<PushReply> {
    if (const auto answer = known(step->number, shard)) return repeated(shard, *answer);
    const PartPush* part = step->parts[shard].get();
    if (!part) return refused({ErrorCode::sessionEnded, "the trainer was lost before all of it had come"});
    if (part->refused) return PushReply{*part->refused};
    if (step->outcome) return PushReply{*step->outcome};
    if (!step->complete) return repeated(shard, part->received());
    return onceDecided(std::move(step), shard);
  });
}

kj::Maybe<kj::Promise<PushReply>> PushServer::answerAgain(PushSlice& slice) {
  if (auto answer = known(slice.step, slice.shard)) {
    tellOfSamplesAgain(slice.step);
    return repeated(slice.shard, *answer);
  }
  const auto found = steps_.find(slice.step);
  if (found == steps_.end()) return nullptr;
  StepPush& step = *found->second;
  const PartPush* part = step.parts[slice.shard].get();
  if (!part || part->basis != slice.basis) return nullptr;
  if (!part->arrived.contains(slice.offset, slice.gradient.size())) return nullptr;
  if (part->refused) return kj::Promise<PushReply>(PushReply{*part->refused});
  slice.turn = nullptr;
  if (part->unanswered == 0) {
    if (!step.complete) return repeated(slice.shard, part->received());
    slice.held = nullptr;  // the policy has taken the slice; the wait may be long
    return onceDecided(found->second, slice.shard);
  }
  return step.whenChanged().then(
      [this, slice = std::move(slice)]() mutable { return take(std::move(slice)); });
}

Result<std::shared_ptr<StepPush>> PushServer::stepOf(const PushSlice& slice) {
  const std::shared_ptr<StepPush> found = begun(slice.step);
  if (found && !found->closed()) return found;
  if (home_->environment().draining) return Error{ErrorCode::shuttingDown, "the daemon is shutting down"};
  if (found) {
    found->reopen();
    return found;
  }
  // Dropping a policy's half-gathered update is what a trainer asks for when it goes on without it.
  for (auto older = steps_.begin(); older != steps_.end() && older->first < slice.step;) {
    const std::shared_ptr<StepPush> step = older->second;
    older = step->complete ? std::next(older) : steps_.erase(older);
    if (!step->complete) step->changed();
  }
  const ParameterStore& store = *model_->store;
  auto step = std::make_shared<StepPush>(*home_, slice.step, store.shardCount());
  for (size_t i = 0; i < store.shardCount(); i++) {  // parts that an earlier session brought in
    if (ofShards_[i].find(slice.step)) step->arrived += store.shard(i).range().count;
  }
  return steps_[slice.step] = std::move(step);
}

std::shared_ptr<StepPush> PushServer::begun(Step step) const {
  const auto found = steps_.find(step);
  return found == steps_.end() ? nullptr : found->second;
}

std::shared_ptr<StepPush> PushServer::stillAtWork(Step newest) const {
  for (const auto& [number, step] : steps_) {
    if (number > newest) break;
    if (step->closed() && step->unanswered > 0) return step;
  }
  return nullptr;
}

size_t PushServer::decidedBeside(const PushSlice& slice) const {
  const ParameterStore& store = *model_->store;
  size_t decided = 0;
  for (uint32_t i = 0; i < store.shardCount(); i++) {
    if (store.shard(i).range().group != store.shard(slice.shard).range().group) continue;
    if (i != slice.shard && ofShards_[i].find(slice.step)) decided++;
  }
  return decided;
}

std::shared_ptr<PartPush> PushServer::open(const PushSlice& slice) const {
  auto part = std::make_shared<PartPush>();
  part->trainer = trainer_;
  part->step = slice.step;
  part->basis = slice.basis;
  part->samples = slice.samples;
  part->policy = home_->policyOf(model_, model_->store->shard(slice.shard));
  return part;
}

Result<PushServer::Admitted> PushServer::admit(const PushSlice& slice) {
  auto bad = [&](const std::string& why) {
    return Error{ErrorCode::badSlice, "push of step " + std::to_string(slice.step.value) + ", shard " +
                                          std::to_string(slice.shard) + ", element " +
                                          std::to_string(slice.offset) + ": " + why};
  };
  Step& newest = newest_[slice.shard];
  if (newest > slice.step) return bad("step " + std::to_string(newest.value) + " has begun already");
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<StepPush> step, stepOf(slice));
  std::shared_ptr<PartPush>& part = step->parts[slice.shard];
  if (part && part->basis != slice.basis) return bad("its slices name different basis versions");
  if (part && part->arrived.overlaps(slice.offset, slice.gradient.size())) {
    return bad("some of its elements came before, in a slice of another size");
  }
  if (part && part->arrived.pieces() >= kPiecesMax) {
    return bad("what came of it lies in " + std::to_string(kPiecesMax) + " pieces; send the slices in order");
  }
  if (!part) part = open(slice);
  newest = slice.step;
  part->known = decidedBeside(slice);
  part->arrived.add(slice.offset, slice.gradient.size());
  step->arrived += slice.gradient.size();
  const bool completes = step->arrived == model_->store->layout().totalElements();
  if (completes) step->completed();
  return Admitted{step, part, completes ? step->completions : 0};
}

PushReply PushServer::refused(const Error& error) const {
  countRefusal(home_->environment().counters, error);
  return {error};
}

kj::Promise<PushReply> PushServer::pushHere(PushSlice slice) {
  if (slice.ring) return pushFromRing(std::move(slice));
  if (const auto step = begun(slice.step); !step || step->closed()) {
    KJ_IF_MAYBE (opened, home_->gate()) {
      inFlight_++;
      counters_->waitForPush.add();
      return opened->then([this, slice = std::move(slice)]() mutable { return pushHere(std::move(slice)); })
          .attach(kj::defer([self = shared_from_this()] { self->landed(); }));
    }
  }
  return take(std::move(slice));
}

kj::Promise<PushReply> PushServer::take(PushSlice slice) {
  if (home_->environment().closed) {
    return refused({ErrorCode::shuttingDown, "the daemon is shutting down"});
  }
  KJ_IF_MAYBE (again, answerAgain(slice)) {
    return again->attach(shared_from_this());
  }
  // The slice waited on its way here, or at the gate. Nobody would end what it began; and where the trainer
  // is back, which sends again what was not answered, its pushes may not overtake those of before.
  if (ended_ || !slice.attachment.stands()) {
    return refused({ErrorCode::sessionEnded, "the trainer is gone, or has joined again"});
  }
  // The gradient was copied for a policy that takes it on the device, which this one does not.
  if (slice.gradient.onDevice() && !takesDeviceGradient(slice)) {
    return pushCopied(std::move(slice), kj::READY_NOW);
  }
  if (const auto step = stillAtWork(slice.step)) {
    slice.turn = nullptr;
    return step->whenChanged()
        .then([this, slice = std::move(slice)]() mutable { return take(std::move(slice)); })
        .attach(shared_from_this());
  }
  auto admitted = admit(slice);
  if (!admitted.ok()) return refused(admitted.error());
  slice.turn = nullptr;
  auto [step, part, completion] = *std::move(admitted);
  const uint32_t shardIndex = slice.shard;
  Shard& shard = model_->store->shard(shardIndex);
  inFlight_++;
  part->unanswered++;
  step->unanswered++;
  counters_->waitForPush.add();
  home_->sliceBegan();
  auto answer = part->policy->push(shard, home_->laneFor(model_, shard), *part, slice.offset, slice.gradient)
                    .attach(kj::defer([home = home_] { home->sliceEnded(); }));
  // The slice that settles a step is the one that completed it last.
  const auto settles = [completion = completion](const StepPush& step) {
    return completion != 0 && step.complete && completion == step.completions;
  };
  return answer
      .then([this, step = step, part = part, slice = std::move(slice),
             settles](Result<PushAnswer> answer) mutable -> kj::Promise<PushReply> {
        answered(*step, *part, slice, answer);
        if (answer.ok()) count(slice);
        slice.held = nullptr;
        if (!settles(*step)) return PushReply{std::move(answer)};
        return settle(step, slice.shard, std::move(answer));
      })
      .then([this, step = step, shardIndex, settles](PushReply reply) -> kj::Promise<PushReply> {
        if (settles(*step)) step->outcome = reply.answer;
        closeIfOver(step);
        if (reply.answer.ok()) {
          count(*reply.answer);
        } else {
          countRefusal(home_->environment().counters, reply.answer.error());
        }
        return whenDurable(shardIndex, std::move(reply));
      })
      .attach(kj::mv(step), kj::defer([self = shared_from_this()] { self->landed(); }));
}

kj::Promise<PushReply> PushServer::whenDurable(uint32_t shard, PushReply reply) const {
  if (!reply.answer.ok()) return reply;
  return model_->store->shard(shard)
      .whenDurable(reply.answer->logged)
      .then([reply = std::move(reply)]() mutable { return std::move(reply); });
}

void PushServer::landed() {
  counters_->waitForPush.subtract();
  if (--inFlight_ != 0) return;
  for (auto& waiting : waitForLanding_) waiting->fulfill();
  waitForLanding_.clear();
}

kj::Promise<void> PushServer::whenLandedHere() {
  if (inFlight_ == 0) return kj::READY_NOW;
  auto pair = kj::newPromiseAndFulfiller<void>();
  waitForLanding_.push_back(kj::mv(pair.fulfiller));
  return kj::mv(pair.promise);
}

}  // namespace psd

// The side of PushServer that finds out what became of a step, once its slices have the policies' answers.

#include <algorithm>

#include <kj/vector.h>

#include "server/push/push_server.h"

namespace psd {

void PushServer::answered(StepPush& step, PartPush& part, const PushSlice& slice,
                          const Result<PushAnswer>& answer) {
  part.unanswered--;
  step.unanswered--;
  const uint64_t count = model_->store->shard(slice.shard).range().count;
  if (answer.ok()) {
    if (!part.newest || part.newest->outcome <= answer->outcome) part.newest = *answer;
    if (answer->outcome != PushOutcome::received && part.arrived.covered() == count) {
      part.fate = *answer;
      ofShards_[slice.shard].add(part.step, *answer);
    }
  } else if (part.taken == count) {
    part.refused = answer.error();
  } else {
    part.arrived.remove(slice.offset, slice.gradient.size());
    step.lacks(slice.gradient.size());
    if (ended_) abandon(step);
  }
  if (part.abandoned) letGo(step);
  step.changed();
}

void PushServer::closeIfOver(const std::shared_ptr<StepPush>& step) {
  if (!step->outcome || step->unanswered > 0) return;
  const auto found = steps_.find(step->number);
  if (found == steps_.end() || found->second != step) return;
  steps_.erase(found);
  countOver(*step);
  tellOfSamples(*step);
  step->changed();
}

kj::Promise<PushReply> PushServer::settle(std::shared_ptr<StepPush> step, uint32_t shard,
                                          Result<PushAnswer> last) {
  // A policy lets go of what waits there when the trainer is gone.
  const auto givenUp = [](kj::Exception&&) {
    return Result<PushAnswer>(ErrorCode::sessionEnded, "the trainer was lost before its gradient was taken");
  };
  std::vector<uint32_t> waited;
  kj::Vector<kj::Promise<void>> fates;
  for (uint32_t i = 0; i < step->parts.size(); i++) {
    const auto& part = step->parts[i];
    if (!part) continue;
    KJ_IF_MAYBE (later, part->later) {
      fates.add(
          later->catch_(givenUp).then([part](Result<PushAnswer> fate) { part->fate = std::move(fate); }));
      part->later = nullptr;
      waited.push_back(i);
    }
  }
  return kj::joinPromises(fates.releaseAsArray())
      .then([this, step = std::move(step), shard, last = std::move(last),
             waited = std::move(waited)]() -> PushReply {
        PushReply reply{last, settleParts(*step, waited)};
        if (!last.ok()) return reply;
        const auto& own = step->parts[shard]->fate;
        if (own && own->ok()) reply.answer->version = std::max(last->version, (*own)->version);
        for (const uint32_t i : waited) {
          const Result<PushAnswer>& fate = *step->parts[i]->fate;
          if (!fate.ok()) return {fate.error(), std::move(reply.dropped)};
          reply.answer->outcome = std::max(reply.answer->outcome, fate->outcome);  // rises with the trouble
          reply.answer->staleness = std::max(reply.answer->staleness, fate->staleness);
          reply.answer->updates += fate->updates;
          reply.answer->logged = std::max(reply.answer->logged, fate->logged);
        }
        return reply;
      });
}

std::vector<uint32_t> PushServer::settleParts(StepPush& step, const std::vector<uint32_t>& waited) {
  // A policy that takes the shards of a group together lets one of them wait for all.
  const ParameterStore& store = *model_->store;
  std::map<uint32_t, Result<PushAnswer>> ofGroups;
  for (const uint32_t shard : waited) {
    ofGroups.emplace(store.shard(shard).range().group, *step.parts[shard]->fate);
  }
  std::vector<uint32_t> dropped;
  for (uint32_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (!part) continue;  // an earlier session brought it in
    const auto ofGroup = ofGroups.find(store.shard(shard).range().group);
    if (!part->fate && !part->refused && ofGroup != ofGroups.end()) part->fate = ofGroup->second;
    if (part->fate && part->fate->ok()) ofShards_[shard].add(step.number, **part->fate);
    if (part->dropped()) dropped.push_back(shard);
  }
  return dropped;
}

}  // namespace psd

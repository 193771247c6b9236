#include "server/push/push_ledger.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/types/invariant_check.h"
#include "common/types/version_info.h"

namespace psd {
namespace {

// Limit on the disjoint ranges of received slices in a shard: each takes memory until it is merged with its
// neighbours.
constexpr size_t kPiecesMax = 4096;

Error badSlice(const SliceHead& slice, std::string_view why) {
  return {ErrorCode::badSlice, fmt::format("push of step {}, shard {}, offset {}: {}", slice.step.value,
                                           slice.shard, slice.offset, why)};
}

}  // namespace

PushLedger::PushLedger(std::vector<uint32_t> groups, UpdatesInFlight& underWay, PartialGradients alone)
    : groups_(std::move(groups)),
      underWay_(underWay),
      rowShards_(alone.rowShards),
      newest_(groups_.size()),
      ofShards_(groups_.size()) {
  for (const uint32_t group : groups_) {
    if (!alone.fragments) break;
    sizes_.resize(std::max<size_t>(sizes_.size(), group + 1));
    sizes_[group]++;
  }
}

void PushLedger::restore(uint32_t shard, const std::vector<AppliedPush>& saved, bool completes) {
  const auto byStep = [](const AppliedPush& a, const AppliedPush& b) { return a.step < b.step; };
  const AppliedPush& newest = *std::max_element(saved.begin(), saved.end(), byStep);
  newest_[shard] = completes ? std::min_element(saved.begin(), saved.end(), byStep)->step : newest.step;
  AnsweredPushes<PushAnswer>& answers = ofShards_[shard];
  const uint64_t before =
      std::min({newest.step.value - 1, AppliedPush::kRememberedSteps, uint64_t{answers.kMost - 1}});
  for (uint64_t back = before + 1; back-- > 0;) {
    const Step step{newest.step.value - back};
    // Steps before a range's newest push that the range does not hold were dropped and must not be applied
    // later.
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

// --- Lookup ------------------------------------------------------------------------------------------

std::optional<PushAnswer> PushLedger::answerOf(Step step, uint32_t shard) const {
  const PushAnswer* found = ofShards_[shard].find(step);
  if (!found) found = dropped_.find(step);
  if (!found) return std::nullopt;
  PushAnswer answer = *found;
  answer.updates = 0;  // already counted with the first answer
  return answer;
}

PushLedger::Lookup PushLedger::find(const SliceHead& slice) const {
  if (const auto answer = answerOf(slice.step, slice.shard)) return {Known::over, *answer, nullptr};
  const std::shared_ptr<StepPush> step = begun(slice.step);
  const PartPush* part = step ? step->parts[slice.shard].get() : nullptr;
  if (!part || part->push.basis != slice.basis) return {};
  if (!part->push.arrived.contains(slice.offset, slice.count)) return {};
  if (part->refused()) return {Known::refused, *part->outcome, nullptr};
  // For a step of an ended session the outcome of its slices is unknown until no policy is processing it.
  const bool withPolicy = part->unanswered > 0 || (step->closed() && step->unanswered > 0);
  if (withPolicy) return {Known::withPolicy, std::nullopt, step};
  if (step->complete) return {Known::undecided, std::nullopt, step};
  return {Known::received, part->received(), nullptr};
}

std::optional<PushLedger::Lookup> PushLedger::decided(const StepPush& step, uint32_t shard) const {
  if (const auto answer = answerOf(step.number, shard)) return Lookup{Known::over, *answer, nullptr};
  const PartPush* part = step.parts[shard].get();
  if (!part) {
    const Error lost{ErrorCode::sessionEnded, "the trainer was lost before the push was complete"};
    return Lookup{Known::refused, lost, nullptr};
  }
  if (part->refused()) return Lookup{Known::refused, *part->outcome, nullptr};
  if (step.outcome) {
    return Lookup{step.outcome->ok() ? Known::over : Known::refused, *step.outcome, nullptr};
  }
  if (!step.complete) return Lookup{Known::received, part->received(), nullptr};
  return std::nullopt;
}

std::shared_ptr<StepPush> PushLedger::begun(Step step) const {
  const auto found = steps_.find(step);
  return found == steps_.end() ? nullptr : found->second;
}

bool PushLedger::begins(Step step) const {
  const auto found = begun(step);
  return !found || found->closed();
}

std::shared_ptr<StepPush> PushLedger::unfinishedClosedStep(Step newest) const {
  for (const auto& [number, step] : steps_) {
    if (number > newest) break;
    if (step->closed() && step->unanswered > 0) return step;
  }
  return nullptr;
}

std::shared_ptr<const void> PushLedger::waits(Step step) {
  return {nullptr, [this, place = waiting_.insert(step)](const void*) { waiting_.erase(place); }};
}

bool PushLedger::applied(const StepPush& step) const {
  bool applied = step.outcome->ok() && (*step.outcome)->applied();
  for (size_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (part) {
      applied = applied || (part->outcome && !part->dropped() && part->outcome->ok());
    } else {  // applied by an earlier session
      const PushAnswer* before = ofShards_[shard].find(step.number);
      applied = applied || (before && before->applied());
    }
  }
  return applied;
}

std::optional<bool> PushLedger::appliedBefore(Step step) const {
  if (steps_.contains(step)) return std::nullopt;
  const bool dropped = dropped_.find(step) != nullptr;
  bool applied = false;
  for (const auto& answers : ofShards_) {
    const PushAnswer* answer = answers.find(step);
    if (!answer && !dropped) return std::nullopt;
    applied = applied || (answer && answer->applied());
  }
  return applied;
}

// --- Incoming slices ---------------------------------------------------------------------------------

Result<std::shared_ptr<StepPush>> PushLedger::stepOf(const SliceHead& slice, bool mayBegin) {
  const Step number = slice.step;
  const std::shared_ptr<StepPush> found = begun(number);
  if (found && !found->closed()) return found;
  if (!mayBegin) return Error{ErrorCode::shuttingDown, "the daemon is shutting down"};
  if (found) {
    found->reopen();
    return found;
  }
  const std::optional<uint32_t> group = groupOf(slice);
  abandonBefore(number, group);
  auto step = std::make_shared<StepPush>(underWay_, number, slice.parts, groups_.size(), group);
  for (uint32_t shard = 0; shard < groups_.size(); shard++) {  // parts applied by an earlier session
    if (step->isOf(groups_[shard]) && ofShards_[shard].find(number)) step->completeParts++;
  }
  return steps_[number] = std::move(step);
}

std::optional<uint32_t> PushLedger::groupOf(const SliceHead& slice) const {
  const uint32_t group = groups_[slice.shard];
  if (slice.parts == groups_.size() || sizes_.empty() || slice.parts != sizes_[group]) return std::nullopt;
  return group;
}

void PushLedger::abandonBefore(Step number, std::optional<uint32_t> group) {
  // Skipping ahead is how a trainer asks to drop an incomplete update.
  for (auto older = steps_.begin(); older != steps_.end() && older->first < number;) {
    const std::shared_ptr<StepPush> step = older->second;
    const bool keep = step->complete || (group && !step->isOf(*group));
    older = keep ? std::next(older) : steps_.erase(older);
    if (keep) continue;
    // Later slices of the dropped step must be rejected: a policy already holds some, and would combine
    // another part of the shard with them.
    for (uint32_t shard = 0; shard < groups_.size(); shard++) {
      if (step->isOf(groups_[shard])) newest_[shard] = std::max(newest_[shard], number);
    }
    step->changed();
  }
}

size_t PushLedger::decidedSiblings(const SliceHead& slice) const {
  size_t decided = 0;
  for (uint32_t i = 0; i < groups_.size(); i++) {
    if (groups_[i] != groups_[slice.shard]) continue;
    if (i != slice.shard && ofShards_[i].find(slice.step)) decided++;
  }
  return decided;
}

Status PushLedger::checkConsistent(const SliceHead& slice) const {
  const Step newest = newest_[slice.shard];
  if (slice.step == Step{}) return badSlice(slice, "steps count from 1");
  if (slice.leadRound > kVersionNumberMax) {  // versions have the numbers of rounds
    return badSlice(slice, fmt::format("its round has the number {}; the largest is {}", slice.leadRound,
                                       kVersionNumberMax));
  }
  if (newest > slice.step) return badSlice(slice, fmt::format("step {} has already started", newest.value));
  const std::optional<uint32_t> group = groupOf(slice);
  const size_t dense = groups_.size() - rowShards_;
  const bool ofRows = slice.shard >= dense;
  const bool oneKind = rowShards_ > 0 && slice.parts == (ofRows ? rowShards_ : dense);
  if (slice.parts != groups_.size() && !group && !oneKind) {
    const std::string fragment =
        sizes_.empty() ? "" : fmt::format(", or {} for its fragment", sizes_[groups_[slice.shard]]);
    return badSlice(slice, fmt::format("the gradient has {} parts; expected one per shard, {}{}", slice.parts,
                                       groups_.size(), fragment));
  }
  const auto step = begun(slice.step);
  if (step && step->group != group) {
    return badSlice(slice, "the step was started with other shards");
  }
  if (step && step->expected != slice.parts) {
    return badSlice(slice, fmt::format("the gradient has {} parts; an earlier slice says {}", slice.parts,
                                       step->expected));
  }
  for (size_t i = 0; step && slice.parts != groups_.size() && i < step->parts.size(); i++) {
    if (!step->parts[i] || (i >= dense) == ofRows) continue;
    return badSlice(slice, "a partial gradient covers either tensors or rows, not both");
  }
  const PartPush* part = step ? step->parts[slice.shard].get() : nullptr;
  if (!part) return {};
  if (part->push.basis != slice.basis) return badSlice(slice, "its slices name different basis versions");
  if (part->push.total != slice.total) {
    return badSlice(slice, fmt::format("the part has {} in total; an earlier slice says {}", slice.total,
                                       part->push.total));
  }
  const auto& carried = part->push.hyperparameters;
  if (!carried != !slice.hyperparameters || (carried && *carried != *slice.hyperparameters)) {
    return badSlice(slice, "its hyperparameters are not those of an earlier slice");
  }
  if (part->push.arrived.overlaps(slice.offset, slice.count)) {
    return badSlice(slice, "some of its elements have already arrived in another slice");
  }
  if (part->push.arrived.pieces() < kPiecesMax) return {};
  return badSlice(slice, fmt::format("its slices form {} separate pieces; send them in order", kPiecesMax));
}

Result<PushLedger::Admitted> PushLedger::admit(const SliceHead& slice, bool mayBegin) {
  const InvariantCheck check(*this);
  // All checks come first: a rejected slice must leave no trace.
  PSD_RETURN_IF_ERROR(checkConsistent(slice));
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<StepPush> step, stepOf(slice, mayBegin));
  std::shared_ptr<PartPush>& part = step->parts[slice.shard];
  if (!part) {
    part = std::make_shared<PartPush>();
    part->push.total = slice.total;
    part->push.step = slice.step;
    part->push.basis = slice.basis;
    part->push.samples = slice.samples;
    part->push.localSteps = slice.localSteps;
    part->push.leadRound = slice.leadRound;
    part->push.hyperparameters = slice.hyperparameters;
  }
  newest_[slice.shard] = slice.step;
  part->push.known = decidedSiblings(slice);
  part->push.arrived.add(slice.offset, slice.count);
  part->unanswered++;
  step->unanswered++;
  if (part->whole()) step->completeParts++;
  const bool completes = part->whole() && step->completeParts == step->expected;
  if (completes) step->completed();
  return Admitted{step, part, completes ? step->completions : 0};
}

void PushLedger::answered(StepPush& step, const SliceHead& slice, const Result<PushAnswer>& answer) {
  const InvariantCheck check(*this);
  PartPush& part = *step.parts[slice.shard];
  part.unanswered--;
  step.unanswered--;
  if (answer.ok()) {
    part.note(*answer);
    // While other slices are with the policy it may still reject one, which is then sent again.
    if (part.whole() && part.unanswered == 0 && part.newest->outcome != PushOutcome::received) {
      part.outcome = *part.newest;
      ofShards_[slice.shard].add(step.number, *part.newest);
    }
  } else if (part.push.taken == part.push.total) {
    part.outcome = answer.error();
  } else {
    if (part.whole()) step.completeParts--;
    part.push.arrived.remove(slice.offset, slice.count);
    step.markIncomplete();
    if (sessionEnded_) abandon(step);
  }
  if (part.abandoned) discardParts(step);
  step.changed();
}

// --- Outcome -----------------------------------------------------------------------------------------

PushReply PushLedger::conclude(StepPush& step, uint32_t shard, const Result<PushAnswer>& last,
                               const std::vector<uint32_t>& waited) {
  const InvariantCheck check(*this);
  PushReply reply{last, enterOutcomes(step, waited)};
  if (!last.ok()) return reply;
  const auto& own = step.parts[shard]->outcome;
  if (own && own->ok()) reply.answer->version = std::max(last->version, (*own)->version);
  for (const uint32_t i : waited) {
    const Result<PushAnswer>& outcome = *step.parts[i]->outcome;
    if (!outcome.ok()) return {outcome.error(), std::move(reply.dropped)};
    reply.answer->outcome = std::max(reply.answer->outcome, outcome->outcome);  // ordered by severity
    reply.answer->staleness = std::max(reply.answer->staleness, outcome->staleness);
    reply.answer->updates += outcome->updates;
    reply.answer->logged = std::max(reply.answer->logged, outcome->logged);
  }
  return reply;
}

std::vector<uint32_t> PushLedger::enterOutcomes(StepPush& step, const std::vector<uint32_t>& waited) {
  // A policy that processes the shards of a group together leaves a single pending answer, on one of them.
  std::map<uint32_t, Result<PushAnswer>> ofGroups;
  for (const uint32_t shard : waited) ofGroups.emplace(groups_[shard], *step.parts[shard]->outcome);
  std::vector<uint32_t> dropped;
  for (uint32_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (!part) continue;  // applied by an earlier session
    const auto ofGroup = ofGroups.find(groups_[shard]);
    if (!part->outcome && ofGroup != ofGroups.end()) part->outcome = ofGroup->second;
    if (part->outcome && part->outcome->ok()) ofShards_[shard].add(step.number, **part->outcome);
    if (part->dropped()) dropped.push_back(shard);
  }
  return dropped;
}

bool PushLedger::closeIfOver(const std::shared_ptr<StepPush>& step) {
  const InvariantCheck check(*this);
  if (!step->outcome || step->unanswered > 0 || begun(step->number) != step) return false;
  steps_.erase(step->number);
  return true;
}

// --- End of the session ------------------------------------------------------------------------------

void PushLedger::endSession() {
  const InvariantCheck check(*this);
  sessionEnded_ = true;
  for (auto& [number, step] : steps_) {
    if (!step->complete) abandon(*step);
  }
}

void PushLedger::abandon(StepPush& step) {
  step.close();  // the rest will not arrive
  for (const auto& part : step.parts) {
    if (part) part->abandoned = true;
  }
  discardParts(step);
}

void PushLedger::discardParts(StepPush& step) {
  if (step.complete) return;
  for (uint32_t shard = 0; shard < step.parts.size(); shard++) {
    const auto& part = step.parts[shard];
    if (!part || !part->abandoned || part->unanswered > 0 || part->live) continue;
    // Keep what was applied, or is with the policy and will be: repeated slices must find it. Nothing else
    // reaches the model.
    if (ofShards_[shard].find(step.number) || handedOver(step, shard)) continue;
    if (part->whole()) step.completeParts--;
    step.parts[shard] = nullptr;
  }
}

bool PushLedger::handedOver(const StepPush& step, uint32_t shard) const {
  for (uint32_t i = 0; i < step.parts.size(); i++) {
    if (groups_[i] != groups_[shard]) continue;
    const auto& part = step.parts[i];
    if (!part || part->refused() || part->state() == PartState::gathering) return false;
  }
  return true;
}

std::string PushLedger::checkInvariants() const {
  for (const auto& [number, step] : steps_) {
    if (step->number != number) return "a step is filed under another number";
    if (sessionEnded_ && !step->complete && !step->closed()) return "an incomplete step outlives its session";
    size_t whole = 0;
    uint64_t unanswered = 0;
    for (uint32_t shard = 0; shard < groups_.size(); shard++) {
      const auto& part = step->parts[shard];
      if (!part) {
        whole += step->isOf(groups_[shard]) && ofShards_[shard].find(number) ? 1 : 0;
        continue;
      }
      if (!step->isOf(groups_[shard])) return "a step has a part of a shard that it does not cover";
      if (newest_[shard] < number) return "a shard has a part of a step that has not started there";
      if (part->push.arrived.covered() > part->push.total) return "more of a part has arrived than it has";
      whole += part->whole() ? 1 : 0;
      unanswered += part->unanswered;
    }
    if (unanswered != step->unanswered) return "the unanswered slices of a step are not those of its parts";
    if (whole != step->completeParts) return "the complete parts of a step are not its whole ones";
    if (step->complete != (whole == step->expected))
      return "a step is complete without its parts, or the reverse";
  }
  return "";
}

}  // namespace psd

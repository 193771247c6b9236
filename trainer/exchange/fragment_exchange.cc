#include "trainer/exchange/fragment_exchange.h"

#include <algorithm>
#include <utility>

namespace psd {
namespace {

// Plain loops over restrict pointers, which the compiler vectorizes.

/// to = to − rate · by.
void subtract(uint64_t count, float rate, const float* __restrict by, float* __restrict to) {
  for (uint64_t i = 0; i < count; ++i) to[i] -= rate * by[i];
}

/// to = share · to + (1 − share) · other.
void blend(uint64_t count, float share, const float* __restrict other, float* __restrict to) {
  for (uint64_t i = 0; i < count; ++i) to[i] = share * to[i] + (1 - share) * other[i];
}

/// Waits for a call, which stays in `call` if the wait is ended.
template <class Info>
Result<Info> await(std::optional<Pending<Info>>& call) {
  Result<Info> answer = call->wait();
  if (answer.ok() || answer.error().code != ErrorCode::interrupted) call.reset();
  return answer;
}

template <class Info>
bool isFinished(const std::optional<Pending<Info>>& call) {
  return !call || call->finished();
}

uint32_t bounded(uint64_t value) { return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX)); }

}  // namespace

FragmentExchange::FragmentExchange(Client& client, const LocalSteps& local,
                                   const std::vector<ShardRange>& shards, Observer observer)
    : client_(client), local_(local), observer_(std::move(observer)), fragments_(local.fragments) {
  for (const ShardRange& shard : shards) {
    Fragment& fragment = fragments_[local_.fragments > 1 ? shard.group : 0];
    fragment.shards.push_back(shard.id.value);
    auto& elements = fragment.elements;
    if (!elements.empty() && elements.back().begin + elements.back().count == shard.begin) {
      elements.back().count += shard.count;
    } else {
      elements.push_back({shard.begin, shard.count});
    }
  }
}

Status FragmentExchange::begin(std::span<float> parameters, std::span<float> spare) {
  parameters_ = parameters;
  spare_ = spare;
  if (whole()) fragments_.front().elements = {{0, parameters.size()}};
  restarts_ = true;
  return restart();
}

Status FragmentExchange::restart() {
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, pullWhole());
  basis_ = pulled.versions;
  std::ranges::copy(spare_, parameters_.begin());
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    fragments_[i].steps = fragments_[i].samples = 0;  // taken while the pull was in flight
    requestRoundDue(i);
  }
  slot_ = openSlot();
  restarts_ = false;
  return {};
}

Result<PullInfo> FragmentExchange::pullWhole() {
  if (!whole_) whole_ = client_.pull(spare_);
  return await(whole_);
}

Status FragmentExchange::ready() { return restarts_ ? restart() : Status(); }

uint64_t FragmentExchange::openSlot() const {
  uint64_t open = UINT64_MAX;
  for (size_t i = 0; i < fragments_.size(); i++) {
    open = std::min(open, roundOf(fragments_[i]) * fragments_.size() + i);
  }
  return open;
}

void FragmentExchange::stepped(uint32_t samples) {
  stepsOfSlot_++;
  for (Fragment& fragment : fragments_) {
    fragment.steps++;
    fragment.samples += samples;
    if (fragment.inFlight()) fragment.stepsSincePush++;
  }
}

uint64_t FragmentExchange::stepsBefore(uint64_t slot) const {
  return slot == 0 ? 0 : local_.slotEnd(slot - 1);
}

uint64_t FragmentExchange::progress() const {
  if (!whole()) return stepsBefore(slot_) + stepsOfSlot_;
  const Fragment& fragment = fragments_.front();
  return local_.stepsBefore(versionOf(fragment).value) + fragment.steps;
}

uint64_t FragmentExchange::rounds() const {
  return whole() ? versionOf(fragments_.front()).value / local_.updatesPerRound : progress() / local_.period;
}

bool FragmentExchange::slotIsOver() const {
  if (whole()) return fragments_.front().steps >= local_.period && !fragments_.front().inFlight();
  // If the fragment restarted in the slot's last step, there is nothing to push before the next step.
  return openSlot() == slot_ && stepsOfSlot_ >= local_.slotEnd(slot_) - stepsBefore(slot_) &&
         fragments_[slot_ % fragments_.size()].steps > 0;
}

bool FragmentExchange::due(bool last) const {
  if (last || whole_ || slotIsOver()) return true;
  return std::ranges::any_of(fragments_, [this](const Fragment& fragment) {
    return (fragment.push && fragment.push->done()) || (fragment.due && fragment.due->done()) ||
           (fragment.inFlight() && fragment.stepsSincePush >= local_.delay) || fragment.behind;
  });
}

Status FragmentExchange::exchange(bool last) {
  if (whole_ && restarts_) return restart();
  PSD_RETURN_IF_ERROR(catchUp());
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    const Fragment& fragment = fragments_[i];
    if (fragment.push && fragment.push->done()) PSD_RETURN_IF_ERROR(answered(i));
    if (fragment.inFlight() && fragment.stepsSincePush >= local_.delay) PSD_RETURN_IF_ERROR(applyResult(i));
  }
  PSD_RETURN_IF_ERROR(handleDueRounds());
  // The open slot may have changed meanwhile; the steps counted are those of slot_.
  const auto here = static_cast<uint32_t>(slot_ % fragments_.size());
  if (slotIsOver()) PSD_RETURN_IF_ERROR(send(here));
  if (last) {
    // With a blend, steps taken since a push remain in the parameters after the result is applied.
    PSD_RETURN_IF_ERROR(applyAllResults(here));
    for (size_t i = 0; i < fragments_.size(); i++) {
      const auto next = static_cast<uint32_t>((here + i) % fragments_.size());
      if (fragments_[next].steps > 0) PSD_RETURN_IF_ERROR(send(next));
    }
  }
  if (last || local_.delay == 0) PSD_RETURN_IF_ERROR(applyAllResults(here));
  if (const uint64_t open = openSlot(); open != slot_) {
    slot_ = open;
    stepsOfSlot_ = 0;
  }
  return {};
}

Status FragmentExchange::handleDueRounds() {
  bool missed = false;
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    Fragment& fragment = fragments_[i];
    if (!fragment.due || !fragment.due->done()) continue;
    const Result<RoundDue> result = fragment.due->wait();
    fragment.due.reset();
    if (!result.ok()) {
      const ErrorCode code = result.error().code;
      const bool wouldFailAgain = code == ErrorCode::invalidArgument || code == ErrorCode::notReady;
      if (!wouldFailAgain) requestRoundDue(i);
    } else if (*result == RoundDue::closed) {
      if (!fragment.inFlight()) missed = true;
    } else if (!fragment.inFlight() && fragment.steps == 0) {
      requestRoundDue(i);  // nothing to push before the next step
    } else if (!fragment.inFlight()) {
      PSD_RETURN_IF_ERROR(send(i));
    }
  }
  if (!missed) return {};
  observer_.dropped();
  if (!whole()) {
    fallBehind();
    return catchUp();
  }
  fragments_.front().steps = fragments_.front().samples = 0;
  restarts_ = true;
  return {};
}

void FragmentExchange::requestRoundDue(uint32_t number) {
  if (!whole()) {
    fragments_[number].due = client_.fragmentDue(basis_, number);
  } else if (local_.endsEarly) {
    fragments_[number].due = client_.roundDue(basis_.front());
  }
}

Status FragmentExchange::meetCentre() {
  PSD_ASSIGN_OR_RETURN(const PullInfo centre, pullWhole());
  basis_ = centre.versions;
  subtract(spare_.size(), 1, parameters_.data(), spare_.data());
  subtract(spare_.size(), -static_cast<float>(local_.alpha), spare_.data(), parameters_.data());
  return {};
}

Status FragmentExchange::send(uint32_t number) {
  Fragment& fragment = fragments_[number];
  if (elastic()) {
    PSD_RETURN_IF_ERROR(meetCentre());
  } else {
    for (const auto& [begin, count] : fragment.elements) {
      subtract(count, 1, parameters_.data() + begin, spare_.data() + begin);
    }
  }
  const GradientInfo behind{bounded(fragment.samples), bounded(fragment.steps),
                            fragments_.size() > 1 ? std::optional(number) : std::nullopt};
  fragment.push = client_.push(Step{++pushes_}, spare_, behind, basis_);
  fragment.stepsSincePush = 0;
  if (!whole()) fragment.steps = fragment.samples = 0;
  return {};
}

Status FragmentExchange::awaitAnswer(Fragment& fragment) {
  const Result<PushInfo> answer = await(fragment.push);
  if (!answer.ok()) {
    // The spare array is again what the steps started from, up to rounding.
    if (whole() && !fragment.push) subtract(spare_.size(), -1, parameters_.data(), spare_.data());
    return answer.error();
  }
  observer_.answered(*answer);
  fragment.late = answer->outcome == PushOutcome::late;
  if (!whole()) return {};
  fragment.steps = fragment.samples = 0;
  restarts_ = !elastic();
  return {};
}

Status FragmentExchange::answered(uint32_t number) {
  PSD_RETURN_IF_ERROR(awaitAnswer(fragments_[number]));
  if (!whole()) fragments_[number].pull = beginPull(number);
  return {};
}

Status FragmentExchange::applyAllResults(uint32_t first) {
  for (size_t i = 0; i < fragments_.size(); i++) {
    const auto next = static_cast<uint32_t>((first + i) % fragments_.size());
    if (fragments_[next].inFlight()) PSD_RETURN_IF_ERROR(applyResult(next));
  }
  return {};
}

Status FragmentExchange::applyResult(uint32_t number) {
  Fragment& fragment = fragments_[number];
  if (fragment.push) PSD_RETURN_IF_ERROR(answered(number));
  if (!fragment.pull) return {};
  const std::vector<Version> before = basis_;
  PSD_RETURN_IF_ERROR(endPull(number, fragment.pull));
  for (const auto& [begin, count] : fragment.elements) {
    blend(count, static_cast<float>(local_.blend), spare_.data() + begin, parameters_.data() + begin);
  }
  if (local_.blend == 0) fragment.steps = fragment.samples = 0;  // their result is overwritten
  // The rounds advanced without this trainer, or the daemon restarted.
  const bool diverged = fragment.late || !advancedOneRound(fragment, before);
  if (diverged) fallBehind(number);
  return catchUp();
}

bool FragmentExchange::advancedOneRound(const Fragment& fragment, const std::vector<Version>& before) const {
  return std::ranges::all_of(fragment.shards,
                             [&](size_t shard) { return basis_[shard].value == before[shard].value + 1; });
}

Pending<PullInfo> FragmentExchange::beginPull(uint32_t number) {
  return fragments_.size() > 1 ? client_.pullFragment(spare_, number) : client_.pull(spare_);
}

Result<bool> FragmentExchange::endPull(uint32_t number, std::optional<Pending<PullInfo>>& pull) {
  Fragment& fragment = fragments_[number];
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, await(pull));
  bool changed = false;
  for (const size_t shard : fragment.shards) {
    changed = changed || basis_[shard] != pulled.versions[shard];
    basis_[shard] = pulled.versions[shard];
  }
  if (changed || !fragment.due) requestRoundDue(number);
  return changed;
}

void FragmentExchange::fallBehind(std::optional<uint32_t> fresh) {
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    if (!fragments_[i].inFlight() && fresh != i) fragments_[i].behind = true;
  }
}

Status FragmentExchange::catchUp() {
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    Fragment& fragment = fragments_[i];
    if (!fragment.behind) continue;
    if (!fragment.catchUp) fragment.catchUp = beginPull(i);
    PSD_ASSIGN_OR_RETURN(const bool changed, endPull(i, fragment.catchUp));
    fragment.behind = false;
    if (!changed) continue;
    for (const auto& [begin, count] : fragment.elements) {
      std::ranges::copy(spare_.subspan(begin, count), parameters_.subspan(begin, count).begin());
    }
    fragment.steps = fragment.samples = 0;
  }
  return {};
}

Status FragmentExchange::settle() {
  Status first;
  const auto note = [&first](const Status& status) {
    if (first.ok()) first = status;
  };
  if (whole_) note(await(whole_).status());
  for (Fragment& fragment : fragments_) {
    if (fragment.catchUp) note(await(fragment.catchUp).status());
    if (fragment.pull) note(await(fragment.pull).status());
    if (fragment.push) note(awaitAnswer(fragment));
  }
  return first;
}

bool FragmentExchange::finished() const {
  return isFinished(whole_) && std::ranges::all_of(fragments_, [](const Fragment& fragment) {
           return isFinished(fragment.push) && isFinished(fragment.pull) && isFinished(fragment.catchUp);
         });
}

}  // namespace psd

#include "trainer/loop/fragment_steps.h"

#include <algorithm>
#include <utility>

#include "trainer/loop/non_finite.h"

namespace psd {
namespace {

// Plain loops over restricted pointers, which the compiler vectorises.

/// to = to − by.
void subtract(uint64_t count, const float* __restrict by, float* __restrict to) {
  for (uint64_t i = 0; i < count; ++i) to[i] -= by[i];
}

/// to = share · to + (1 − share) · other.
void blend(uint64_t count, float share, const float* __restrict other, float* __restrict to) {
  for (uint64_t i = 0; i < count; ++i) to[i] = share * to[i] + (1 - share) * other[i];
}

uint32_t bounded(uint64_t value) { return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX)); }

}  // namespace

FragmentSteps::FragmentSteps(Client& client, Model& model, const LocalSteps& local,
                             const std::vector<ShardRange>& shards, Observer observer)
    : client_(client),
      model_(model),
      local_(local),
      optimizer_(local.inner.value_or(InnerOptimizer{.rate = local.rate})),
      observer_(std::move(observer)),
      inner_(optimizer_),
      fragments_(local.fragments) {
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

Status FragmentSteps::begin() {
  if (begun_) return {};
  begun_ = true;
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_.pull(model_.parameters()).wait());
  basis_ = pulled.versions;
  std::ranges::copy(model_.parameters(), model_.spareParameters().begin());
  for (uint32_t i = 0; i < fragments_.size(); i++) askWhenDue(i);
  slot_ = openSlot();
  return {};
}

uint64_t FragmentSteps::openSlot() const {
  uint64_t open = UINT64_MAX;
  for (size_t i = 0; i < fragments_.size(); i++) {
    open = std::min(open, roundOf(fragments_[i]) * fragments_.size() + i);
  }
  return open;
}

double FragmentSteps::step(uint32_t samples) {
  stepsOfSlot_++;
  for (Fragment& fragment : fragments_) {
    fragment.steps++;
    fragment.samples += samples;
    if (fragment.underWay()) fragment.sinceSent++;
  }
  const uint64_t before = slot_ == 0 ? 0 : local_.slotEnd(slot_ - 1);
  const double rate = optimizer_.rateAt(before + stepsOfSlot_);
  inner_.step(rate, model_.gradients(), model_.parameters());
  return rate;
}

Status FragmentSteps::exchange(bool last) {
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    const Fragment& fragment = fragments_[i];
    if (fragment.push && fragment.push->done()) PSD_RETURN_IF_ERROR(answered(i));
    if (fragment.underWay() && fragment.sinceSent >= local_.delay) PSD_RETURN_IF_ERROR(takeOver(i));
  }
  PSD_RETURN_IF_ERROR(heed());
  // Another slot may have begun meanwhile; of the one that it was the steps count.
  const auto here = static_cast<uint32_t>(slot_ % fragments_.size());
  const uint64_t begin = slot_ == 0 ? 0 : local_.slotEnd(slot_ - 1);
  if (openSlot() == slot_ && stepsOfSlot_ >= local_.slotEnd(slot_) - begin) PSD_RETURN_IF_ERROR(send(here));
  for (size_t i = 0; last && i < fragments_.size(); i++) {
    const auto next = static_cast<uint32_t>((here + i) % fragments_.size());
    if (!fragments_[next].underWay() && fragments_[next].steps > 0) PSD_RETURN_IF_ERROR(send(next));
  }
  for (size_t i = 0; (last || local_.delay == 0) && i < fragments_.size(); i++) {
    const auto next = static_cast<uint32_t>((here + i) % fragments_.size());
    if (fragments_[next].underWay()) PSD_RETURN_IF_ERROR(takeOver(next));
  }
  if (const uint64_t open = openSlot(); open != slot_) {
    slot_ = open;
    stepsOfSlot_ = 0;
  }
  return {};
}

Status FragmentSteps::heed() {
  if (!local_.endsEarly) return {};
  bool missed = false;
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    Fragment& fragment = fragments_[i];
    if (!fragment.due || !fragment.due->done()) continue;
    const Result<RoundDue> told = fragment.due->wait();
    fragment.due.reset();
    if (!told.ok()) {
      askWhenDue(i);
    } else if (*told == RoundDue::closed) {
      if (!fragment.underWay()) missed = true;
    } else if (!fragment.underWay() && fragment.steps == 0) {
      askWhenDue(i);  // there is nothing to push before the next step
    } else if (!fragment.underWay()) {
      PSD_RETURN_IF_ERROR(send(i));
    }
  }
  if (!missed) return {};
  observer_.dropped();
  return catchUp();
}

void FragmentSteps::askWhenDue(uint32_t number) {
  Fragment& fragment = fragments_[number];
  fragment.due.reset();
  if (local_.endsEarly) fragment.due = client_.fragmentDue(versionOf(fragment), number);
}

Status FragmentSteps::send(uint32_t number) {
  Fragment& fragment = fragments_[number];
  const std::span<float> difference = model_.spareParameters(), w = model_.parameters();
  for (const auto& [begin, count] : fragment.elements) {
    subtract(count, w.data() + begin, difference.data() + begin);
  }
  const Behind behind{bounded(fragment.samples), bounded(fragment.steps),
                      fragments_.size() > 1 ? std::optional(number) : std::nullopt};
  fragment.push = client_.push(Step{++pushes_}, difference, behind, basis_);
  fragment.steps = fragment.samples = fragment.sinceSent = 0;
  return {};
}

Status FragmentSteps::answered(uint32_t number) {
  Fragment& fragment = fragments_[number];
  const Result<PushInfo> answer = std::exchange(fragment.push, std::nullopt)->wait();
  if (!answer.ok()) return explain(answer.error());
  observer_.answered(*answer);
  fragment.late = answer->outcome == PushOutcome::late;
  fragment.pull = beginPull(number);
  return {};
}

Status FragmentSteps::takeOver(uint32_t number) {
  Fragment& fragment = fragments_[number];
  if (fragment.push) PSD_RETURN_IF_ERROR(answered(number));
  const Version before = versionOf(fragment);
  PSD_RETURN_IF_ERROR(endPull(number, *std::exchange(fragment.pull, std::nullopt)));
  const std::span<float> w = model_.parameters(), pulled = model_.spareParameters();
  for (const auto& [begin, count] : fragment.elements) {
    blend(count, static_cast<float>(local_.blend), pulled.data() + begin, w.data() + begin);
  }
  if (local_.blend == 0) fragment.steps = fragment.samples = 0;  // what they came to is gone
  // Others have gone on without this trainer, or with a daemon that began anew.
  const bool apart = fragment.late || versionOf(fragment).value != before.value + 1;
  return apart ? catchUp(number) : Status();
}

Pending<PullInfo> FragmentSteps::beginPull(uint32_t number) {
  const std::span<float> to = model_.spareParameters();
  return fragments_.size() > 1 ? client_.pullFragment(to, number) : client_.pull(to);
}

Result<bool> FragmentSteps::endPull(uint32_t number, Pending<PullInfo> pull) {
  Fragment& fragment = fragments_[number];
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, pull.wait());
  const Version before = versionOf(fragment);
  for (const size_t shard : fragment.shards) basis_[shard] = pulled.versions[shard];
  const bool changed = versionOf(fragment) != before;
  if (changed || !fragment.due) askWhenDue(number);
  return changed;
}

Status FragmentSteps::catchUp(std::optional<uint32_t> fresh) {
  for (uint32_t i = 0; i < fragments_.size(); i++) {
    Fragment& fragment = fragments_[i];
    if (fragment.underWay() || fresh == i) continue;
    PSD_ASSIGN_OR_RETURN(const bool changed, endPull(i, beginPull(i)));
    if (!changed) continue;
    for (const auto& [begin, count] : fragment.elements) {
      std::ranges::copy(std::span<const float>(model_.spareParameters()).subspan(begin, count),
                        model_.parameters().begin() + static_cast<ptrdiff_t>(begin));
    }
    fragment.steps = fragment.samples = 0;
  }
  return {};
}

Status FragmentSteps::settle() {
  Status first;
  for (Fragment& fragment : fragments_) {
    if (fragment.pull) {
      const Result<PullInfo> pulled = std::exchange(fragment.pull, std::nullopt)->wait();
      if (!pulled.ok() && first.ok()) first = pulled.error();
    }
    if (!fragment.push) continue;
    const Result<PushInfo> answer = std::exchange(fragment.push, std::nullopt)->wait();
    if (answer.ok()) {
      observer_.answered(*answer);
    } else if (first.ok()) {
      first = explain(answer.error());
    }
  }
  return first;
}

Error FragmentSteps::explain(const Error& refusal) {
  if (refusal.code != ErrorCode::nonFinite) return refusal;
  for (Fragment& fragment : fragments_) {  // whose pulls write what is looked at
    if (fragment.pull) [[maybe_unused]]
      const auto any = std::exchange(fragment.pull, std::nullopt)->wait();
  }
  const std::string where = describeNonFinite(model_.spec(), model_.spareParameters());
  if (where.empty()) return refusal;
  return {ErrorCode::nonFinite,
          "what the steps came to: " + where + ", so it was refused; a lower learning rate may help"};
}

}  // namespace psd

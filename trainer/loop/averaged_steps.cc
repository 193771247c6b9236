#include "trainer/loop/averaged_steps.h"

#include <algorithm>
#include <array>

namespace psd {
namespace {

// Gives up after this number of groups that fail before their first step.
constexpr int kAttemptsMax = 20;

/// g ← factor · g.
void scale(std::span<float> values, float factor) {
  for (float& value : values) value *= factor;
}

}  // namespace

std::vector<std::span<float>> cutIntoBuckets(std::span<float> gradient, uint64_t bucketBytes) {
  const size_t most = std::max<uint64_t>(1, bucketBytes / sizeof(float));
  std::vector<std::span<float>> buckets;
  for (size_t begin = 0; begin < gradient.size(); begin += most) {
    buckets.push_back(gradient.subspan(begin, std::min(most, gradient.size() - begin)));
  }
  return buckets;
}

Status AveragedSteps::ready() { return group_ ? Status() : formNextGroup(); }

Status AveragedSteps::formNextGroup() {
  group_.reset();
  call_.reset();
  const uint64_t before = generation_;
  std::optional<Version> reached;  // by the group that the trainer had a step in
  for (int attempt = 1; attempt <= kAttemptsMax; attempt++) {
    PSD_ASSIGN_OR_RETURN(const bool formed, tryForm());
    if (!reached) reached = before == 0 ? Version{} : reached_;
    if (!formed) continue;
    reached_ = *reached;
    return {};
  }
  return {ErrorCode::unavailable,
          "no averaging group formed in " + std::to_string(kAttemptsMax) +
              " attempts (--allreduce-host is where the others reach this trainer): " + broken_};
}

Result<bool> AveragedSteps::tryForm() {
  PSD_ASSIGN_OR_RETURN(const AveragingMember where, maker_.where());
  PSD_ASSIGN_OR_RETURN(const FormedGroup formed, client_.formAveragingGroup(generation_, where));
  generation_ = formed.generation;
  reached_ = formed.reached;
  first_ = formed.index == 0;
  // The daemon's wait for an unresponsive member and the members' own wait add up to timeout_ms.
  auto made = maker_.make(formed, terms_.timeout / 2);
  if (!made.ok()) {
    broken_ = made.message();
    return false;
  }
  group_ = *std::move(made);
  if (first_) {
    auto pulled = client_.pull(model_.parameters()).wait();
    if (!pulled.ok()) return pulled.error();
    basis_ = pulled->versions;
    version_ = basis_.front();
    call_ = client_.roundDue(version_);
  }
  bool counted = false;
  const Status broadcastModel = this->broadcastModel(counted);
  if (broadcastModel.ok()) return true;
  broken_ = broadcastModel.message();
  group_.reset();
  return false;
}

Status AveragedSteps::broadcastModel(bool& counted) {
  std::array<uint64_t, 2> words{counted, version_.value};
  PSD_RETURN_IF_ERROR(group_->broadcastFromFirst(words));
  counted = words[0] != 0;
  PSD_RETURN_IF_ERROR(group_->broadcastFromFirst(model_.parameters()));
  version_ = Version{words[1]};
  return {};
}

bool AveragedSteps::wanted() {
  if (!call_ || !call_->done()) return false;
  const Result<RoundDue> state = call_->wait();
  call_.reset();
  if (state.ok()) return true;
  call_ = client_.roundDue(version_);  // the answer was lost with its connection
  return false;
}

Result<PushInfo> AveragedSteps::pushMean(uint32_t samples, Step number) {
  PSD_ASSIGN_OR_RETURN(const PushInfo pushed,
                       client_.push(number, model_.gradients(), GradientInfo(samples), basis_).wait());
  PSD_ASSIGN_OR_RETURN(const PullInfo pulled, client_.pull(model_.parameters()).wait());
  basis_ = pulled.versions;
  version_ = basis_.front();
  return pushed;
}

Result<AveragedSteps::Outcome> AveragedSteps::step(uint32_t samples, bool last, Step number) {
  const std::span<float> gradient = model_.gradients();
  const Version before = version_;
  scale(gradient, static_cast<float>(samples));
  // Summed together with the gradients: samples, members that leave, members that know of a waiting trainer.
  std::array<float, 3> state{static_cast<float>(samples), last ? 1.f : 0.f, wanted() ? 1.f : 0.f};
  std::vector<std::span<float>> arrays = cutIntoBuckets(gradient, terms_.bucketBytes);
  arrays.push_back(state);
  Status works = group_->sum(arrays);
  Outcome outcome;
  if (works.ok()) {
    scale(gradient, state[0] > 0 ? 1 / state[0] : 0);
    if (first_) {
      PSD_ASSIGN_OR_RETURN(outcome.push, pushMean(static_cast<uint32_t>(state[0]), number));
      outcome.counted = outcome.push->outcome == PushOutcome::applied;
    }
    bool counted = outcome.counted;
    works = broadcastModel(counted);
    // The member that pushed knows the outcome, even if the others do not.
    if (works.ok() && !first_) outcome.counted = counted;
  }
  if (!works.ok()) {
    broken_ = works.message();
    const bool known = outcome.push.has_value();
    if (known && last) return outcome;
    PSD_RETURN_IF_ERROR(formNextGroup());
    if (!known) outcome.counted = reached_ > before;
    return outcome;
  }
  // The group ends if a member leaves, a trainer waits to join, or the daemon did not apply the update.
  if (state[1] > 0 || state[2] > 0 || !outcome.counted) group_.reset();
  return outcome;
}

}  // namespace psd

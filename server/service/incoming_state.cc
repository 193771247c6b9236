#include "server/service/incoming_state.h"

#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include "common/text/text.h"
#include "server/model/slice_checks.h"

namespace psd {
namespace {

constexpr uint64_t kStepsMax = uint64_t{1} << 53;  // a double has every number up to it

std::vector<Slot> slotsOf(const ServedModel& model, uint32_t shard) {
  return model.store->optimizerOf(model.store->shard(shard)).slots();
}

std::string planeName(const ServedModel& model, uint32_t shard, size_t plane) {
  return plane == 0 ? "values" : fmt::format("state {}", slotsOf(model, shard)[plane - 1].name);
}

}  // namespace

IncomingState::IncomingState(EventLoop& loop, std::shared_ptr<ServedModel> model)
    : loop_(loop), model_(std::move(model)) {}

void IncomingState::clear() {
  if (state_.shards.empty()) return;
  state_.shards.clear();
  arrived_.clear();
  model_->restoring.store(false);
}

Status IncomingState::begin() {
  clear();
  PSD_RETURN_IF_ERROR(checkRestorable(*model_->store));
  const uint32_t shards = static_cast<uint32_t>(model_->store->shardCount());
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < shards; i++) {
    bytes += (1 + slotsOf(*model_, i).size()) * model_->store->shard(i).range().count * sizeof(float);
  }
  const uint64_t most = loop_.config().limits.arrivingBytes;
  if (bytes > most) {
    return {
        ErrorCode::overloaded,
        fmt::format("the model's values and optimizer state take {} bytes, and limits.arriving_bytes is {}",
                    bytes, most)};
  }
  if (model_->restoring.exchange(true)) {
    return {ErrorCode::notReady, "another trainer is restoring the model's optimizer state"};
  }
  state_.shards.resize(shards);
  arrived_.resize(shards);
  for (uint32_t i = 0; i < shards; i++) {
    const size_t planes = 1 + slotsOf(*model_, i).size();
    state_.shards[i].planes.resize(planes);
    arrived_[i].resize(planes);
  }
  return {};
}

Result<size_t> IncomingState::planeOf(uint32_t shard, std::string_view state) const {
  if (state.empty()) return size_t{0};
  const std::vector<Slot> slots = slotsOf(*model_, shard);
  const auto found = std::ranges::find(slots, state, &Slot::name);
  if (found != slots.end()) return static_cast<size_t>(found - slots.begin()) + 1;
  const std::string has = joined(slots, ", ", [](const Slot& slot) { return std::string(slot.name); });
  return Error{ErrorCode::badSlice,
               fmt::format("the optimizer of shard {}, {}, has no state '{}'; it has {}", shard,
                           model_->store->optimizerOf(model_->store->shard(shard)).name(), printable(state),
                           has.empty() ? "none" : has)};
}

Status IncomingState::accept(uint32_t shard, std::string_view state, uint64_t offset,
                             std::span<const float> values) {
  if (shard == 0 && state.empty() && offset == 0) PSD_RETURN_IF_ERROR(begin());
  PSD_RETURN_IF_ERROR(checkSlice(*model_, loop_.config().limits, shard, offset, values.size()));
  PSD_ASSIGN_OR_RETURN(const size_t plane, planeOf(shard, state));
  if (state_.shards.empty()) return {ErrorCode::badSlice, "a restore begins with the values of shard 0"};
  PSD_RETURN_IF_ERROR(checkRestored(*model_, shard, plane, offset, values));
  if (!arrived_[shard][plane].add(offset, values.size())) {
    return {ErrorCode::badSlice, fmt::format("{} of element {} of shard {} were sent twice",
                                             planeName(*model_, shard, plane), offset, shard)};
  }
  std::vector<float>& into = state_.shards[shard].planes[plane];
  if (into.empty()) into.resize(model_->store->shard(shard).range().count);
  std::ranges::copy(values, into.begin() + static_cast<ptrdiff_t>(offset));
  return {};
}

Status IncomingState::write(uint32_t shard, std::string_view state, uint64_t offset,
                            std::span<const float> values) {
  Status status = accept(shard, state, offset, values);
  if (status.ok()) return {};
  clear();
  countRefusal(loop_.environment().counters, status.error());
  return status;
}

Status IncomingState::checkComplete(const std::vector<uint64_t>& steps) const {
  if (state_.shards.empty()) return {ErrorCode::badSlice, "no state to restore was sent"};
  if (steps.size() != state_.shards.size()) {
    return {ErrorCode::badSlice,
            fmt::format("steps of {} shards, and the model has {}", steps.size(), state_.shards.size())};
  }
  for (uint32_t i = 0; i < steps.size(); i++) {
    if (steps[i] > kStepsMax) {
      return {ErrorCode::badSlice,
              fmt::format("shard {} has {} steps, more than {}", i, steps[i], kStepsMax)};
    }
    const uint64_t elements = model_->store->shard(i).range().count;
    for (size_t plane = 0; plane < arrived_[i].size(); plane++) {
      const uint64_t covered = arrived_[i][plane].covered();
      if (covered == elements) continue;
      return {ErrorCode::badSlice, fmt::format("shard {} has {} for {} of its {} elements", i,
                                               planeName(*model_, i, plane), covered, elements)};
    }
  }
  return {};
}

Result<ModelState> IncomingState::take(const std::vector<uint64_t>& steps) {
  Status complete = checkComplete(steps);
  if (!complete.ok()) {
    clear();
    return complete.error();
  }
  ModelState taken{std::exchange(state_.shards, {})};
  arrived_.clear();
  model_->restoring.store(false);
  for (size_t i = 0; i < steps.size(); i++) taken.shards[i].steps = steps[i];
  return taken;
}

}  // namespace psd

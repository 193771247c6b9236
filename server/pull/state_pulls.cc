#include "server/pull/state_pulls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <kj/debug.h>
#include <spdlog/fmt/fmt.h>

#include "common/text/text.h"
#include "server/model/slice_checks.h"
#include "server/policy/store_promise.h"

namespace psd {
namespace {

constexpr uint64_t kPieceElements = 1u << 18;  // copied between turns of the loop

}  // namespace

std::vector<std::string> StatePulls::namesOf(uint32_t shard) const {
  std::vector<std::string> names;
  for (const Slot& slot : model_->store->optimizerOf(model_->store->shard(shard)).slots()) {
    names.emplace_back(slot.name);
  }
  return names;
}

Status StatePulls::check(const StateRequest& request) const {
  const Limits& limits = loop_.config().limits;
  if (request.count > 0 || request.shard >= model_->store->shardCount()) {
    PSD_RETURN_IF_ERROR(checkSlice(*model_, limits, request.shard, request.offset, request.count));
  }
  if (request.count > 0 && dropped_ && pull_ == request.pull && shard_ == request.shard) {
    return {ErrorCode::deadlineExceeded,
            fmt::format(
                "pull {} of the state of shard {} has been idle for limits.pull_timeout_ms ({}): restart it",
                request.pull, request.shard, limits.pullTimeoutMs)};
  }
  const std::vector<std::string> names = namesOf(request.shard);
  if (request.state.empty() || std::ranges::find(names, request.state) != names.end()) return {};
  return {ErrorCode::badSlice,
          fmt::format("the optimizer of shard {} has no state '{}'; it has {}", request.shard,
                      printable(request.state), names.empty() ? "none" : joined(names, ", "))};
}

kj::Promise<Result<StateSlice>> StatePulls::pull(const StateRequest& request) {
  const Shard& shard = model_->store->shard(request.shard);
  std::vector<std::string> names = namesOf(request.shard);
  asked_ = loop_.now();
  if (request.count == 0) {
    copy_ = nullptr;
    dropped_ = false;
    const Version version = shard.version();
    return Result<StateSlice>(
        StateSlice{version, version.value - shard.stateSince().value, std::move(names), {}, {}});
  }
  if (copy_ == nullptr || pull_ != request.pull || shard_ != request.shard) {
    pull_ = request.pull;
    shard_ = request.shard;
    dropped_ = false;
    copy_ = copy(request.shard).fork();
  }
  unanswered_++;
  return KJ_ASSERT_NONNULL(copy_)
      .addBranch()
      .attach(kj::defer([this] { unanswered_--; }))
      .then([request, names = std::move(names)](Copied copied) mutable -> Result<StateSlice> {
        if (!copied.ok()) return copied.error();
        const Copy& from = **copied;
        const auto named = std::ranges::find(names, request.state);
        const size_t plane = request.state.empty() ? 0 : static_cast<size_t>(named - names.begin()) + 1;
        const std::span<const float> values(from.planes[plane].get() + request.offset, request.count);
        return StateSlice{from.version, from.steps, std::move(names), values, *copied};
      });
}

void StatePulls::dropIdle(kj::TimePoint since) {
  if (copy_ == nullptr || unanswered_ > 0 || asked_ > since) return;
  copy_ = nullptr;
  dropped_ = true;
}

kj::Promise<StatePulls::Copied> StatePulls::copy(uint32_t index) {
  Shard& shard = model_->store->shard(index);
  const size_t planes = 1 + namesOf(index).size();
  const uint64_t bytes = planes * shard.range().count * sizeof(float);
  ByteBudget& budget = *loop_.environment().budgets.snapshots;
  auto taken = budget.tryTake(bytes);
  kj::Promise<ByteBudget::Lease> room = taken ? std::move(*taken) : budget.take(bytes);
  return room.then([this, index, planes, &shard](ByteBudget::Lease lease) {
    auto copy = std::make_shared<Copy>();
    copy->room = std::move(lease);
    for (size_t i = 0; i < planes; i++) {
      copy->planes.push_back(std::make_unique_for_overwrite<float[]>(shard.range().count));
    }
    return shard.lock().acquire().then(
        [this, index, &shard, made = std::move(copy)](ShardLock::Guard guard) mutable {
          made->version = shard.version();
          made->steps = made->version.value - shard.stateSince().value;
          return copyFrom(index, std::move(made), 0, 0).attach(kj::mv(guard));
        });
  });
}

kj::Promise<StatePulls::Copied> StatePulls::copyFrom(uint32_t index, std::shared_ptr<Copy> copy, size_t plane,
                                                     uint64_t offset) {
  Shard& shard = model_->store->shard(index);
  if (offset == shard.range().count) {
    plane++;
    offset = 0;
  }
  if (plane == copy->planes.size()) return Copied(std::move(copy));
  const uint64_t count = std::min(kPieceElements, shard.range().count - offset);
  Lane& lane = loop_.laneFor(model_, shard);
  return storePromise<Result<ReadView>>(shard,
                                        [&](ShardStorage::ReadDone done) {
                                          if (plane == 0)
                                            return shard.storage().read(lane, offset, count, std::move(done));
                                          shard.storage().readSlot(lane, static_cast<uint32_t>(plane - 1),
                                                                   offset, count, std::move(done));
                                        })
      .then([this, index, copy = std::move(copy), plane,
             offset](Result<ReadView> view) mutable -> kj::Promise<Copied> {
        if (!view.ok()) return Copied(view.error());
        std::memcpy(copy->planes[plane].get() + offset, view->values.data(), view->values.size_bytes());
        const uint64_t next = offset + view->values.size();
        return copyFrom(index, std::move(copy), plane, next);
      });
}

}  // namespace psd

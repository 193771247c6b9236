#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <kj/async.h>
#include <kj/vector.h>

#include "common/types/stopwatch.h"
#include "server/service/join_service.h"
#include "server/service/model_access.h"
#include "trainer/client/api/client.h"
#include "trainer/client/transport/row_slices.h"
#include "trainer/client/transport/slices.h"

namespace psd::testing {

/// A value that a thread waits for and a loop provides or rejects, once. Thread-safe.
class LocalCall {
 public:
  virtual ~LocalCall() = default;
  virtual void refuse(const Error& error) = 0;
};

/// An Error if it ends before a value is provided.
template <class T>
class LocalAnswer final : public LocalCall {
 public:
  ~LocalAnswer() override { refuse({ErrorCode::unavailable, "the daemon has ended"}); }
  void give(Result<T> value) {
    if (!given_.exchange(true)) promise_.set_value(std::move(value));
  }
  void refuse(const Error& error) override { give(error); }
  std::future<Result<T>> future() { return promise_.get_future(); }

 private:
  std::promise<Result<T>> promise_;
  std::atomic<bool> given_{false};
};

/// A LocalClient's part on the loop: the services, and the calls in flight, which keep it alive. Belongs to
/// the loop's thread.
class LocalSession : public std::enable_shared_from_this<LocalSession> {
 public:
  using Role = ModelInitialization::Role;

  LocalSession(std::shared_ptr<EventLoop> loop, ControlLoop& control)
      : loop_(std::move(loop)), joins_(loop_, control) {}

  kj::Promise<Result<JoinInfo>> join(JoinService::Request request) {
    return joins_.join(std::move(request)).then([this](Result<JoinedTrainer> joined) -> Result<JoinInfo> {
      if (!joined.ok()) return joined.error();
      model_ = std::move(joined->model);
      trainer_ = std::move(joined->service);
      role_ = joined->grant.role;
      loop_->detach(keepLease(*loop_, weak_from_this()));
      loop_->detach(notice_.wrap(trainer_->notice(0).then([this](const Result<Notice>& notice) {
        if (!notice.ok() || !notice->end) return;
        end({notice->end->restarting ? ErrorCode::unavailable : ErrorCode::shuttingDown,
             "the daemon ends: " + notice->end->reason});
      })));
      return describe(joined->grant.trainer.rank, joined->grant.worldSize);
    });
  }

  kj::Promise<Result<JoinInfo>> observe(ModelSpec model) {
    return joins_.observe(std::move(model))
        .then([this](Result<std::shared_ptr<ServedModel>> served) -> Result<JoinInfo> {
          if (!served.ok()) return served.error();
          model_ = *std::move(served);
          reader_ = std::make_unique<PullService>(*loop_, model_, std::nullopt, nullptr, nullptr);
          return describe({}, 0);
        });
  }

  kj::Promise<Result<Role>> awaitModel() {
    return trainer_->awaitModel().then([this](Result<Role> role) {
      if (role.ok()) role_ = *role;
      return role;
    });
  }
  Role role() const { return role_; }

  kj::Promise<Status> bringValues(const std::vector<Slice>& slices, std::span<const float> values) {
    auto written = kj::heapArrayBuilder<kj::Promise<Status>>(slices.size());
    for (const Slice& slice : slices) {
      written.add(trainer_->initialize(slice.shard.value, slice.offset, std::as_bytes(part(values, slice))));
    }
    return allOf(written.finish()).then([this](Status status) -> kj::Promise<Status> {
      if (!status.ok()) return status;
      return trainer_->initialized(Step{0});
    });
  }

  /// Without a destination: only the rows; without a batch: only the arena.
  kj::Promise<Result<PullInfo>> pull(const std::vector<Slice>& slices, std::span<float> destination,
                                     const std::vector<RowSlice>& rowSlices, RowBatch* rows) {
    PullService& pulls = trainer_ ? trainer_->pulls() : *reader_;
    const auto info = std::make_shared<PullInfo>();
    info->versions.resize(model_->store->blockCount(), kUnread);
    const uint64_t number = ++pullNumber_;
    kj::Vector<kj::Promise<Status>> read;
    for (const Slice& slice : slices) {
      if (destination.empty()) break;
      read.add(pullSlice(pulls, {number, slice.shard.value, slice.offset, slice.count},
                         destination.subspan(slice.arena, slice.count), info));
    }
    for (const RowSlice& slice : rowSlices) {
      if (slice.count > 0) read.add(pullRows(pulls, slice, *rows, info));
    }
    return allOf(read.releaseAsArray())
        .then([this, info, took = Stopwatch()](const Status& status) -> Result<PullInfo> {
          if (!status.ok()) return status.error();
          info->seconds = took.seconds();
          std::ranges::replace(info->versions, kUnread, Version{});
          bytesPulled_ += info->bytes;
          return *info;
        });
  }

  /// Sends one slice of a push; the daemon's answer goes into `info`.
  kj::Promise<Status> push(const SliceHead& head, std::span<const float> values, PushInfo& info) {
    // A copy, since a call that was rejected early may still be in flight.
    const auto copy = std::make_shared<const std::vector<float>>(values.begin(), values.end());
    return push(PushSlice{.head = head, .gradient = *copy, .held = copy}, values.size_bytes(), info);
  }

  /// Sends one slice of rows of a push; the daemon's answer goes into `info`. `batch` may be null for a slice
  /// without rows.
  kj::Promise<Status> push(SliceHead head, const RowSlice& slice, const RowBatch* batch, PushInfo& info) {
    struct Held {
      std::vector<float> gradient;
      std::vector<uint64_t> ids;
    };
    const auto held = std::make_shared<Held>();
    held->gradient.resize(slice.values);
    if (slice.count > 0) collectGradients(slice, *batch, held->gradient);
    if (slice.count > 0) held->ids = idsOf(slice, *batch);
    head.shard = slice.shard.value;
    head.offset = slice.first;
    head.count = slice.count;
    head.total = slice.total;
    return push(PushSlice{.head = head,
                          .gradient = std::span<const float>(held->gradient),
                          .rows = OwnedRowRuns{runsOf(slice), held->ids},
                          .held = held},
                slice.values * sizeof(float), info);
  }

  kj::Promise<Result<AssignedSamples>> takeSamples(const SamplesRequest& request) {
    if (!trainer_) return Result<AssignedSamples>(notJoined());
    return trainer_->takeSamples(request).then(
        [this](const Result<SamplesForStep>& samples) -> Result<AssignedSamples> {
          if (!samples.ok()) return samples.error();
          AssignedSamples assigned{.what = samples->finished ? AssignedSamples::What::finished
                                                             : AssignedSamples::What::nothingNow};
          if (!samples->range) return assigned;
          assigned.what = AssignedSamples::What::range;
          assigned.epoch = samples->range->epoch;
          assigned.begin = samples->range->begin;
          assigned.count = static_cast<uint32_t>(samples->range->count);
          assigned.scaledByTrainer = elementsOf(model_->store->plan(), samples->scaledByTrainer);
          assigned.unweightedTables = tablesOf(*model_->store, samples->scaledByTrainer);
          return assigned;
        });
  }

  kj::Promise<Status> leave() {
    if (!trainer_) return Status();
    return trainer_->leave();
  }

  /// Rejects all calls, those in flight and later ones, with this error. Calls that the daemon has accepted
  /// complete there.
  void end(const Error& error) {
    if (!ended_) ended_ = error;
    for (const auto& waiting : std::exchange(calls_, {})) {
      if (const auto call = waiting.lock()) call->refuse(*ended_);
    }
  }
  /// The client was destroyed.
  void close() {
    end({ErrorCode::interrupted, "the client has ended"});
    notice_.cancel("the client has ended");
    if (trainer_) trainer_->disconnected();
  }
  const std::optional<Error>& ended() const { return ended_; }
  /// Registers the call so that end() rejects it.
  void note(std::weak_ptr<LocalCall> call) {
    std::erase_if(calls_, [](const auto& each) { return each.expired(); });
    calls_.push_back(std::move(call));
  }

  const ServedModel& model() const { return *model_; }
  uint64_t sliceElementsMax() const { return accessTo(*model_, loop_->config()).sliceElementsMax; }
  uint64_t bytesPulled() const { return bytesPulled_; }
  uint64_t bytesPushed() const { return bytesPushed_; }

 private:
  static constexpr Version kUnread{UINT64_MAX};

  /// Resolves once all have resolved, with the first Error among them.
  static kj::Promise<Status> allOf(kj::Array<kj::Promise<Status>> parts) {
    return kj::joinPromises(kj::mv(parts)).then([](kj::Array<Status> answers) {
      for (Status& answer : answers) {
        if (!answer.ok()) return std::move(answer);
      }
      return Status();
    });
  }

  static Error notJoined() { return {ErrorCode::notReady, "this client has not joined as a trainer"}; }

  /// The tables of the marked row shards, whose marks follow those of the shards.
  static std::vector<uint32_t> tablesOf(const ParameterStore& store, const std::vector<bool>& blocks) {
    std::set<uint32_t> tables;
    for (size_t i = store.shardCount(); i < blocks.size(); i++) {
      if (!blocks[i]) continue;
      for (const RowShard::Table& table : store.rowShard(i - store.shardCount()).tables()) {
        tables.insert(table.index);
      }
    }
    return {tables.begin(), tables.end()};
  }

  static std::vector<ElementRange> elementsOf(const ShardPlan& plan, const std::vector<bool>& shards) {
    std::vector<ElementRange> ranges;
    for (size_t i = 0; i < std::min(shards.size(), plan.shards.size()); i++) {
      const ShardRange& range = plan.shards[i];
      if (!shards[i]) continue;
      if (!ranges.empty() && ranges.back().begin + ranges.back().count == range.begin) {
        ranges.back().count += range.count;
      } else {
        ranges.push_back({range.begin, range.count});
      }
    }
    return ranges;
  }

  kj::Promise<Status> push(PushSlice slice, uint64_t bytes, PushInfo& info) {
    if (!trainer_) return Status(notJoined());
    const uint32_t shard = slice.head.shard;
    return trainer_->push(std::move(slice))
        .then([this, &info, shard, bytes](const PushReply& reply) -> Status {
          if (!reply.answer.ok()) return reply.answer.error();
          info.bytes += bytes;
          bytesPushed_ += bytes;
          info.versions[shard] = std::max(info.versions[shard], reply.answer->version);
          info.staleness = std::max(info.staleness, reply.answer->staleness);
          info.outcome = std::max(info.outcome, reply.answer->outcome);
          return {};
        });
  }

  static std::vector<uint64_t> idsOf(const RowSlice& slice, const RowBatch& batch) {
    std::vector<uint64_t> ids;
    visitIds(slice, batch,
             [&](std::span<const uint64_t> piece) { ids.insert(ids.end(), piece.begin(), piece.end()); });
    return ids;
  }

  static std::span<const float> part(std::span<const float> values, const Slice& slice) {
    return values.subspan(slice.arena, slice.count);
  }

  JoinInfo describe(Rank rank, uint32_t worldSize) const {
    const ModelAccess access = accessTo(*model_, loop_->config());
    return {.policy = access.policy,
            .device = access.device,
            .shardCount = static_cast<uint32_t>(model_->store->shardCount()),
            .serverVersion = PSD_VERSION,
            .rowShardCount = static_cast<uint32_t>(model_->store->rowShardCount()),
            .pullTransport = "local",
            .pushTransport = "local",
            .local = access.local,
            .rank = rank,
            .worldSize = worldSize};
  }

  kj::Promise<Status> pullSlice(PullService& pulls, const PullRequest& request, std::span<float> place,
                                const std::shared_ptr<PullInfo>& info) {
    Status may = trainer_ ? trainer_->mayTrain() : Status();
    if (may.ok()) may = pulls.check(request);
    if (!may.ok()) return may;
    return pulls.pull(request, nullptr)
        .then([this, place, info, shard = request.shard](const Result<PulledSlice>& slice) -> Status {
          if (!slice.ok()) return slice.error();
          if (ended_) return *ended_;  // and the destination may be destroyed
          std::memcpy(place.data(), slice->bytes.data(), slice->bytes.size());
          info->bytes += slice->bytes.size();
          info->versions[shard] = std::min(info->versions[shard], slice->version);
          return {};
        });
  }

  kj::Promise<Status> pullRows(PullService& pulls, const RowSlice& slice, RowBatch& batch,
                               const std::shared_ptr<PullInfo>& info) {
    auto ids = kj::heap<std::vector<uint64_t>>(idsOf(slice, batch));
    RowPullRequest request{slice.shard.value, {runsOf(slice), *ids}};
    Status may = trainer_ ? trainer_->mayTrain() : Status();
    if (may.ok()) may = pulls.check(request);
    if (!may.ok()) return may;
    return pulls.pullRows(std::move(request), nullptr)
        .then([this, slice, &batch, info](const Result<PulledRows>& rows) -> Status {
          if (!rows.ok()) return rows.error();
          if (ended_) return *ended_;  // and the batch may be destroyed
          placeValues({reinterpret_cast<const float*>(rows->bytes.data()), slice.values}, slice, batch);
          info->bytes += rows->bytes.size();
          info->knownRows += rows->answer.known;
          Version& oldest = info->versions[slice.shard.value];
          oldest = std::min(oldest, rows->answer.version);
          return {};
        })
        .attach(kj::mv(ids))
        .eagerlyEvaluate(nullptr);  // without it the shard's lock is held until all parts of the pull are
                                    // complete
  }

  /// A trainer in this process is alive as long as the process is.
  static kj::Promise<void> keepLease(EventLoop& loop, std::weak_ptr<LocalSession> weak) {
    const auto third = kj::max(uint64_t{1}, loop.config().membership.leaseMs / 3) * kj::MILLISECONDS;
    return loop.timer().afterDelay(third).then([&loop, weak = std::move(weak)]() -> kj::Promise<void> {
      const auto self = weak.lock();
      if (!self || self->ended_) return kj::READY_NOW;
      (void)self->trainer_->renewLease();
      return keepLease(loop, weak);
    });
  }

  const std::shared_ptr<EventLoop> loop_;
  JoinService joins_;
  std::shared_ptr<ServedModel> model_;
  std::unique_ptr<TrainerService> trainer_;
  std::unique_ptr<PullService> reader_;
  Role role_ = Role::wait;
  uint64_t pullNumber_ = 0;
  std::atomic<uint64_t> bytesPulled_{0}, bytesPushed_{0};  // read by the client's thread
  std::optional<Error> ended_;                             // why no more calls are made
  std::vector<std::weak_ptr<LocalCall>> calls_;            // in flight
  kj::Canceler notice_;                                    // notifies of the daemon's end
};

}  // namespace psd::testing

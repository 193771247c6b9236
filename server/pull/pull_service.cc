#include "server/pull/pull_service.h"

#include <algorithm>
#include <iterator>

#include <kj/debug.h>

#include "common/text/text.h"
#include "server/model/slice_checks.h"
#include "server/policy/shard_reads.h"
#include "server/store/rows/row_blocks.h"

namespace psd {
namespace {

// Below this size the bookkeeping of a published slice would take more memory than its values.
constexpr uint64_t kPublishedElementsMin = 256;

}  // namespace

PullService::PullService(EventLoop& loop, std::shared_ptr<ServedModel> model,
                         std::optional<TrainerRef> trainer, std::shared_ptr<SessionCounters> counters,
                         const Codec* codec, SliceEncoder encoder)
    : loop_(loop),
      model_(std::move(model)),
      trainer_(trainer),
      counters_(std::move(counters)),
      codec_(codec),
      encoder_(std::move(encoder)) {}

Result<const Codec*> PullService::agreedCodec(std::string_view name) const {
  if (name.empty()) return nullptr;
  if (codec_ && name == codec_->name()) return codec_;
  return codecNotAgreed(printable(name), codec_);
}

Status PullService::mayRead() const {
  if (loop_.environment().serving.draining()) return {ErrorCode::shuttingDown, "the daemon is shutting down"};
  if (model_->retired()) {
    return {ErrorCode::notReady, "the daemon now serves the model in another tensor order"};
  }
  return {};
}

Status PullService::check(const PullRequest& request) const {
  PSD_RETURN_IF_ERROR(mayRead());
  const Limits& limits = loop_.config().limits;
  PSD_RETURN_IF_ERROR(checkSlice(*model_, limits, request.shard, request.offset, request.count));
  const auto found = pulls_.find(request.shard);
  const Reading* const current = found == pulls_.end() ? nullptr : found->second.get();
  if (!current || current->pull != request.pull || !current->snapshotDropped) return {};
  return {ErrorCode::deadlineExceeded, "pull " + std::to_string(request.pull) + " of shard " +
                                           std::to_string(request.shard) +
                                           " has been idle for limits.pull_timeout_ms (" +
                                           std::to_string(limits.pullTimeoutMs) + "): restart it"};
}

std::shared_ptr<PullService::Reading> PullService::reading(const PullRequest& request) {
  auto& current = pulls_[request.shard];
  if (!current || current->pull != request.pull) {
    current = std::make_shared<Reading>();
    current->trainer = trainer_;
    current->pull = request.pull;
    current->policy = loop_.policyOf(model_, model_->store->shard(request.shard));
  }
  return current;
}

std::shared_ptr<const void> PullService::markInProgress(uint32_t shard,
                                                        const std::shared_ptr<Reading>& reading) {
  reading->asked = loop_.now();
  reading->unanswered++;
  return {nullptr, [this, shard, reading](const void*) {
            reading->unanswered--;
            reading->asked = loop_.now();  // the wait was not the peer's fault
            if (reading->snapshot != nullptr) holding_.insert(shard);
          }};
}

std::shared_ptr<const void> PullService::holdWaitCounter() {
  if (!counters_) return nullptr;
  counters_->waitForParameters.add();
  return {nullptr, [counters = counters_](const void*) { counters->waitForParameters.subtract(); }};
}

void PullService::dropIdle(kj::TimePoint since) {
  for (auto shard = holding_.begin(); shard != holding_.end();) {
    Reading& reading = *pulls_[*shard];
    const bool idle = reading.unanswered == 0 && reading.asked <= since;
    if (idle) {
      reading.snapshotDropped = true;
      reading.snapshot = nullptr;
    }
    shard = reading.snapshot == nullptr ? holding_.erase(shard) : std::next(shard);
  }
}

kj::Promise<Result<PulledSlice>> PullService::pull(const PullRequest& request, const Codec* codec) {
  Shard& shard = model_->store->shard(request.shard);
  auto reading = this->reading(request);
  auto values =
      reading->policy->pull(shard, loop_.laneFor(model_, shard), *reading, request.offset, request.count);
  return values.attach(holdWaitCounter(), markInProgress(request.shard, reading))
      .then([this, request, codec](Result<PullAnswer> answer) -> Result<PulledSlice> {
        if (!answer.ok()) return answer.error();
        const DType dtype = model_->store->shard(request.shard).range().dtype;
        auto sent = encoded(answer->view, codec ? codec : codecOf(dtype));
        if (!sent.ok()) return inTensors(*model_, request.shard, request.offset, request.count, sent.error());
        return PulledSlice{answer->version, sent->bytes, std::move(sent->owner)};
      });
}

kj::Promise<Result<PublishedSlice>> PullService::pullDelta(const PullRequest& request,
                                                           const HeldValues& held) {
  if (!trainer_) {
    return Result<PublishedSlice>(ErrorCode::invalidArgument, "only joined trainers may pull differences");
  }
  const Codec* const codec = findDecoder(loop_.config().groups.back().policy.local.deltas);
  if (!codec) {
    return Result<PublishedSlice>(ErrorCode::invalidArgument,
                                  "the policy has no `deltas`: pull whole values");
  }
  Shard& shard = model_->store->shard(request.shard);
  auto reading = this->reading(request);
  auto values =
      reading->policy->pull(shard, loop_.laneFor(model_, shard), *reading, request.offset, request.count);
  return values.attach(holdWaitCounter(), markInProgress(request.shard, reading))
      .then([this, request, held, codec](Result<PullAnswer> answer) -> Result<PublishedSlice> {
        if (!answer.ok()) return answer.error();
        const uint64_t ofShard = model_->store->shard(request.shard).range().count;
        PublishedSlice slice{.version = answer->version,
                             .bytes = std::as_bytes(answer->view.values),
                             .owner = answer->view.owner};
        if (request.count >= std::min(kPublishedElementsMin, ofShard)) {
          slice = model_->published.answer(request.shard, request.offset, answer->view, answer->version, held,
                                           *codec);
        }
        if (!slice.owner) slice.owner = model_;
        count(slice.bytes.size(), answer->view.values.size_bytes());
        return slice;
      });
}

Status PullService::check(const RowPullRequest& request) const {
  PSD_RETURN_IF_ERROR(mayRead());
  return checkRows(*model_, loop_.config().limits, request.shard, request.rows.view());
}

RowShard& PullService::rowShardOf(const RowPullRequest& request) const {
  return model_->store->rowShard(request.shard - model_->store->shardCount());
}

uint64_t PullService::valueBytes(const RowPullRequest& request) const {
  return rowShardOf(request).valueCount(request.rows.runs) * sizeof(float);
}

kj::Maybe<kj::Promise<Status>> PullService::waitToPull(const RowPullRequest& request) {
  const auto policy = loop_.policyOf(model_, rowShardOf(request));
  auto waits = KJ_ASSERT_NONNULL(policy->rows()).waitToPullRows(trainer_);
  KJ_IF_MAYBE (wait, waits) return wait->attach(holdWaitCounter(), policy);
  return nullptr;
}

kj::Promise<Result<RowsAnswer>> PullService::readRows(RowPullRequest request, std::span<float> out) {
  RowShard& shard = rowShardOf(request);
  const auto policy = loop_.policyOf(model_, shard);
  auto read = KJ_ASSERT_NONNULL(policy->rows()).pullRows(shard, trainer_, request.rows.view(), out);
  return read.attach(holdWaitCounter(), std::move(request), policy);
}

kj::Promise<Result<RowsAnswer>> PullService::pullRowsTo(RowPullRequest request, std::span<float> place) {
  return readRows(std::move(request), place)
      .then([this, bytes = place.size_bytes()](Result<RowsAnswer> answer) {
        if (answer.ok()) count(bytes, bytes);
        return answer;
      });
}

kj::Promise<Result<PulledRows>> PullService::pullRows(RowPullRequest request, const Codec* codec) {
  const uint64_t bytes = valueBytes(request);
  auto room = encoder_.allocate(bytes);
  if (!room.ok()) return Result<PulledRows>(room.error());
  const std::span<float> out(room->get(), bytes / sizeof(float));
  auto blocks = rowBlocks(rowShardOf(request), request.rows.runs);
  return readRows(std::move(request), out)
      .then([this, codec, values = *std::move(room), out,
             blocks = std::move(blocks)](Result<RowsAnswer> answer) -> Result<PulledRows> {
        if (!answer.ok()) return answer.error();
        SliceEncoder::Encoded sent{std::as_bytes(out), values};
        if (codec && !out.empty()) {
          PSD_ASSIGN_OR_RETURN(sent, encoder_.encodeRows(*codec, blocks, out));
        }
        count(sent.bytes.size(), out.size_bytes());
        return PulledRows{*answer, sent.bytes, std::move(sent.owner)};
      });
}

kj::Promise<Result<Version>> PullService::pullTo(const PullRequest& request, std::span<float> place) {
  Shard& shard = model_->store->shard(request.shard);
  auto reading = this->reading(request);
  auto values =
      psd::pullTo(*reading->policy, shard, loop_.laneFor(model_, shard), *reading, request.offset, place);
  return values.attach(holdWaitCounter(), markInProgress(request.shard, reading))
      .then([this, bytes = place.size_bytes()](Result<Version> version) {
        if (version.ok()) count(bytes, bytes);
        return version;
      });
}

Result<SliceEncoder::Encoded> PullService::encoded(const ReadView& view, const Codec* codec) {
  SliceEncoder::Encoded sent{std::as_bytes(view.values), view.owner};
  if (codec) {
    PSD_ASSIGN_OR_RETURN(sent, encoder_.encode(*codec, view));
  }
  // The answer may outlive its call, the model and this service.
  if (!sent.owner) sent.owner = model_;
  count(sent.bytes.size(), view.values.size_bytes());
  return sent;
}

void PullService::count(uint64_t bytes, uint64_t valueBytes) {
  DaemonMetrics& counters = loop_.environment().counters;
  counters.pullSlices.add();
  counters.pullBytes.add(bytes);
  counters.pullValueBytes.add(valueBytes);
  if (!counters_) return;
  counters_->bytesPulled.add(bytes);
  counters_->valueBytesPulled.add(valueBytes);
}

}  // namespace psd

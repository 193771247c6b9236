#include "server/service/initial_values.h"

#include <spdlog/fmt/fmt.h>

#include "server/model/slice_checks.h"
#include "server/policy/store_promise.h"

namespace psd {

InitialValues::InitialValues(EventLoop& loop, std::shared_ptr<ServedModel> model)
    : loop_(loop), model_(std::move(model)) {}

Status InitialValues::check(uint32_t shard, uint64_t offset, const Gradient& values) {
  PSD_RETURN_IF_ERROR(checkSlice(*model_, loop_.config().limits, shard, offset, values.size()));
  PSD_RETURN_IF_ERROR(checkGradient(*model_, shard, offset, values));
  if (arrived_.empty()) arrived_.resize(model_->store->shardCount());
  if (arrived_[shard].add(offset, values.size())) return {};
  return {ErrorCode::badSlice,
          fmt::format("initial values for element {} of shard {} were sent twice", offset, shard)};
}

kj::Promise<Status> InitialValues::write(uint32_t shardIndex, uint64_t offset, const Gradient& encoded) {
  if (Status status = check(shardIndex, offset, encoded); !status.ok()) {
    countRefusal(loop_.environment().counters, status.error());
    return status;
  }
  std::vector<float> decoded;
  std::span<const float> values = encoded.values();
  if (encoded.codec()) {
    decoded.resize(encoded.size());
    encoded.codec()->decode(encoded.bytes(), encoded.size(), 0, decoded);
    values = decoded;
  }
  Shard& shard = model_->store->shard(shardIndex);
  // Synchronous writes delay nothing: the calls of this trainer take effect in order.
  const bool later = !shard.storage().synchronous();
  if (later) writing_++;
  return storePromise<Status>(shard,
                              [&](ShardStorage::Done done) {
                                shard.storage().write(loop_.laneFor(model_, shard), offset, values,
                                                      std::move(done));
                              })
      .then([this, later, decoded = std::move(decoded)](Status status) {
        if (later) written(status);
        return status;
      });
}

void InitialValues::written(const Status& status) {
  if (!status.ok()) failed_ = status.error();
  if (--writing_ > 0) return;
  for (auto& waiting : waiters_) waiting->fulfill();
  waiters_.clear();
}

kj::Maybe<kj::Promise<void>> InitialValues::whenWritten() {
  if (writing_ == 0) return nullptr;
  auto written = kj::newPromiseAndFulfiller<void>();
  waiters_.push_back(kj::mv(written.fulfiller));
  return kj::mv(written.promise);
}

Status InitialValues::complete() const {
  if (failed_) return *failed_;
  for (size_t i = 0; i < model_->store->shardCount(); i++) {
    const uint64_t elements = model_->store->shard(i).range().count;
    const uint64_t arrived = arrived_.empty() ? 0 : arrived_[i].covered();
    if (arrived == elements) continue;
    return {ErrorCode::badSlice,
            fmt::format("shard {} has initial values for {} of its {} elements", i, arrived, elements)};
  }
  return {};
}

}  // namespace psd

#include "trainer/client/transport/shared_model.h"

#include <algorithm>
#include <atomic>

#include "trainer/client/transport/live_copy.h"

namespace psd {
namespace {

/// End of `count` items of `size` bytes at `at`, `step` bytes apart; UINT64_MAX on overflow.
uint64_t endOf(uint64_t at, uint64_t count, uint64_t step, uint64_t size) {
  uint64_t end = 0;
  bool overflow = __builtin_mul_overflow(count - 1, step, &end);
  overflow |= __builtin_add_overflow(end, at, &end);
  overflow |= __builtin_add_overflow(end, size, &end);
  return overflow ? UINT64_MAX : end;
}

}  // namespace

Result<std::unique_ptr<SharedModel>> SharedModel::open(int fd, const Places& places, const ShardPlan& plan) {
  constexpr uint64_t kWord = sizeof(std::atomic<uint64_t>);
  if (places.valuesAt % sizeof(float) != 0 || places.versionsAt % kWord != 0 ||
      places.versionStep % kWord != 0 || places.readableAt % kWord != 0) {
    return Error{ErrorCode::protocolMismatch, "the places in the daemon's shared memory are not aligned"};
  }
  const uint64_t values = endOf(places.valuesAt, plan.totalElements(), sizeof(float), sizeof(float));
  const uint64_t versions = endOf(places.versionsAt, plan.shards.size(), places.versionStep, kWord);
  const uint64_t readable = endOf(places.readableAt, 1, 0, kWord);
  const uint64_t bytes = std::max({values, versions, readable});
  PSD_ASSIGN_OR_RETURN(auto file, SharedMemory::open(fd, bytes, SharedAccess::readOnly));
  return std::unique_ptr<SharedModel>(new SharedModel(std::move(file), places, plan));
}

bool SharedModel::readable() const {
  const std::byte* word = file_->data() + places_.readableAt;
  return reinterpret_cast<const std::atomic<uint64_t>*>(word)->load(std::memory_order_acquire) != 0;
}

std::span<const float> SharedModel::values() const {
  return {reinterpret_cast<const float*>(file_->data() + places_.valuesAt), plan_.totalElements()};
}

std::vector<Version> SharedModel::versions() const {
  std::vector<Version> versions;
  for (size_t i = 0; i < plan_.shards.size(); i++) {
    const std::byte* word = file_->data() + places_.versionsAt + i * places_.versionStep;
    versions.push_back(
        {reinterpret_cast<const std::atomic<uint64_t>*>(word)->load(std::memory_order_acquire)});
  }
  return versions;
}

void SharedModel::copy(uint64_t begin, std::span<float> destination, uint64_t whole) const {
  liveCopy(destination.size(), values().data() + begin, destination.data(), whole);
}

}  // namespace psd

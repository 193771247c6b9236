#include "server/store/staging_pool.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

namespace psd {
namespace {

constexpr uint64_t kRoundingBytes = 64 * 1024;

Error noBuffer(uint64_t bytes, const std::string& reason) {
  return {ErrorCode::overloaded, "no staging buffer of " + std::to_string(bytes) + " bytes: " + reason};
}

}  // namespace

StagingPool::Memory StagingPool::hostMemory() {
  return {.allocate = [](size_t bytes) { return std::aligned_alloc(64, bytes); }, .release = std::free};
}

std::shared_ptr<StagingPool> StagingPool::make(Memory memory, Limits limits) {
  return std::shared_ptr<StagingPool>(new StagingPool(memory, limits));
}

StagingPool::~StagingPool() { releaseIdle(); }

Result<std::shared_ptr<float>> StagingPool::acquire(uint64_t count) {
  if (count > (UINT64_MAX - kRoundingBytes) / sizeof(float)) {
    return noBuffer(UINT64_MAX, "more than can be addressed");
  }
  const uint64_t wanted = std::max<uint64_t>(count * sizeof(float), 1);
  const uint64_t bytes = (wanted + kRoundingBytes - 1) / kRoundingBytes * kRoundingBytes;
  Buffer buffer;
  std::vector<Buffer> surplus;
  {
    const std::lock_guard lock(mutex_);
    if (lentBytes_ > 0 && lentBytes_ + bytes > limits_.lentBytesMax) {
      return noBuffer(bytes, std::to_string(lentBytes_) + " of " + std::to_string(limits_.lentBytesMax) +
                                 " bytes are in use");
    }
    buffer = takeIdle(bytes);
    if (buffer.data == nullptr) buffer.bytes = bytes;
    surplus = takeIdleBeyond(limits_.idleBytesMax);
    lentBytes_ += buffer.bytes;
  }
  release(surplus);
  if (buffer.data == nullptr) buffer.data = memory_.allocate(bytes);
  if (buffer.data == nullptr) {
    releaseIdle();
    buffer.data = memory_.allocate(bytes);
  }
  if (buffer.data == nullptr) {
    const std::lock_guard lock(mutex_);
    lentBytes_ -= bytes;
    return noBuffer(bytes, "the system is out of memory");
  }
  return std::shared_ptr<float>(static_cast<float*>(buffer.data), Return{shared_from_this(), buffer});
}

void StagingPool::setLentBytesMax(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  limits_.lentBytesMax = bytes;
}

uint64_t StagingPool::lentBytes() const {
  const std::lock_guard lock(mutex_);
  return lentBytes_;
}

StagingPool::Buffer StagingPool::takeIdle(uint64_t bytes) {
  for (Buffer& candidate : idle_) {
    if (candidate.bytes < bytes || candidate.bytes / 2 > bytes) continue;
    const Buffer found = candidate;
    candidate = idle_.back();
    idle_.pop_back();
    idleBytes_ -= found.bytes;
    return found;
  }
  return {};
}

std::vector<StagingPool::Buffer> StagingPool::takeIdleBeyond(uint64_t bytes) {
  std::vector<Buffer> taken;
  while (idleBytes_ > bytes) {
    taken.push_back(idle_.back());
    idleBytes_ -= idle_.back().bytes;
    idle_.pop_back();
  }
  return taken;
}

void StagingPool::release(const std::vector<Buffer>& buffers) {
  for (const Buffer& buffer : buffers) memory_.release(buffer.data);
}

void StagingPool::releaseIdle() {
  std::vector<Buffer> idle;
  {
    const std::lock_guard lock(mutex_);
    idle = takeIdleBeyond(0);
  }
  release(idle);
}

void StagingPool::Return::operator()(float*) { pool->returnBuffer(buffer, lent); }

bool StagingPool::transfer(const std::shared_ptr<const void>& owner) {
  Return* const buffer = std::get_deleter<Return>(owner);
  if (buffer == nullptr || buffer->pool->memory_.scarce) return false;
  const std::lock_guard lock(buffer->pool->mutex_);
  if (std::exchange(buffer->lent, false)) buffer->pool->lentBytes_ -= buffer->buffer.bytes;
  return true;
}

void StagingPool::returnBuffer(Buffer buffer, bool lent) {
  const std::lock_guard lock(mutex_);
  if (lent) lentBytes_ -= buffer.bytes;
  idleBytes_ += buffer.bytes;
  idle_.push_back(buffer);
}

Result<std::shared_ptr<float>> acquireForGradient(StagingPool& pool, uint64_t count) {
  auto values = pool.acquire(count);
  if (values.ok()) return values;
  return Error{values.error().code,
               "not enough memory to gather a gradient (limits.staged_bytes): " + values.message()};
}

}  // namespace psd

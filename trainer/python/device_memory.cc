#include "trainer/python/device_memory.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace psd::python {
namespace {

using Clock = std::chrono::steady_clock;

// Polling of a wait for the device: it spins for kAwake; then each sleep is 1 / kSleepPart of the time waited
// so far, at most kLongestSleep.
constexpr std::chrono::microseconds kAwake{100};
constexpr std::chrono::microseconds kLongestSleep{1000};
constexpr int kSleepPart = 16;
constexpr std::chrono::milliseconds kKeepWaitingInterval{20};

}  // namespace

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::make(int device, std::function<bool()> keepWaiting) {
  PSD_ASSIGN_OR_RETURN(auto copier, DeviceCopier::make(device));
  return std::shared_ptr<DeviceMemory>(new DeviceMemory(device, std::move(copier), std::move(keepWaiting)));
}

CudaDevice DeviceMemory::device() const { return {index_, reinterpret_cast<uint64_t>(copier_->stream())}; }

void DeviceMemory::expect(const ArrayForm& form) {
  const std::lock_guard lock(mutex_);
  form_ = form;
}

void DeviceMemory::begin(Client& client) {
  const bool uses = client.useDeviceMemory();
  const std::lock_guard lock(mutex_);
  usesDevice_ = uses;
}

Result<bool> DeviceMemory::idle() {
  const std::lock_guard lock(mutex_);
  return copier_->idle();
}

Status DeviceMemory::wait() {
  const auto begun = Clock::now();
  for (auto asked = begun;;) {
    PSD_ASSIGN_OR_RETURN(const bool isIdle, idle());
    if (isIdle) return {};
    const auto now = Clock::now();
    if (now - asked > kKeepWaitingInterval) {
      if (!keepWaiting_()) return {ErrorCode::interrupted, "this trainer was interrupted"};
      asked = now;
    }
    const Clock::duration waited = now - begun;
    if (waited < kAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / kSleepPart, kLongestSleep));
    }
  }
}

Status DeviceMemory::copy(std::span<float> to, std::span<const float> from) {
  PSD_RETURN_IF_ERROR(wait());  // first, since it can be interrupted and the copy cannot
  const std::lock_guard lock(mutex_);
  return copier_->copy(to.data(), from.data(), to.size_bytes());
}

bool DeviceMemory::fits(std::span<const float> array) const {
  return form_.fits(array.size()) && isAligned(array.data());
}

DeviceMemory::HostCopy DeviceMemory::hostCopyFor(std::span<const float> array) {
  const std::lock_guard lock(mutex_);
  if (usesDevice_ || array.empty() || !fits(array)) return nullptr;
  const auto free = std::ranges::find_if(hostCopies_, [&](const HostCopy& copy) {
    return copy.use_count() == 1 && copy->size() == array.size();
  });
  if (free != hostCopies_.end()) return *free;
  hostCopies_.push_back(std::make_shared<std::vector<float>>(array.size()));
  return hostCopies_.back();
}

std::span<const float> DeviceMemory::beginInitialization(std::span<const float> array) {
  std::vector<float> values;
  {
    const std::lock_guard lock(mutex_);
    if (array.empty() || !fits(array))
      return array;  // the client rejects it, unless the model has no tensors
    values.resize(array.size());
  }
  const Status copied = copy(values, array);
  const std::lock_guard lock(mutex_);
  copyStatus_ = copied;
  hostValues_ = std::move(values);
  return copied.ok() ? std::span<const float>(hostValues_) : std::span<const float>();
}

Status DeviceMemory::endInitialization() {
  const std::lock_guard lock(mutex_);
  std::exchange(hostValues_, {});  // an assignment of {} would keep the memory
  return std::exchange(copyStatus_, Status());
}

}  // namespace psd::python

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

}  // namespace

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::make(int device, Interrupted interrupted) {
  PSD_ASSIGN_OR_RETURN(auto copier, DeviceCopier::make(device));
  return std::shared_ptr<DeviceMemory>(new DeviceMemory(device, std::move(copier), std::move(interrupted)));
}

CudaDevice DeviceMemory::device() const { return {index_, reinterpret_cast<uint64_t>(copier_->stream())}; }

Status DeviceMemory::wait() {
  for (const auto begun = Clock::now();;) {
    PSD_ASSIGN_OR_RETURN(const bool idle, copier_->idle());
    if (idle) return {};
    if (*interrupted_) return {ErrorCode::interrupted, "this trainer was interrupted"};
    const Clock::duration waited = Clock::now() - begun;
    if (waited < kAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min<Clock::duration>(waited / kSleepPart, kLongestSleep));
    }
  }
}

Status DeviceMemory::copy(std::span<float> to, std::span<const float> from) {
  PSD_RETURN_IF_ERROR(wait());  // first, since it can be interrupted and the copy cannot
  return copier_->copy(to.data(), from.data(), to.size_bytes());
}

bool DeviceMemory::fits(std::span<const float> array) const {
  return array.size() == elements_ && isAligned(array.data());
}

DeviceMemory::HostCopy DeviceMemory::hostCopyFor(std::span<const float> array) {
  if (usesDevice_ || array.empty() || !fits(array)) return nullptr;
  const auto free =
      std::ranges::find_if(hostCopies_, [](const HostCopy& copy) { return copy.use_count() == 1; });
  if (free != hostCopies_.end()) return *free;
  hostCopies_.push_back(std::make_shared<std::vector<float>>(elements_));
  return hostCopies_.back();
}

std::span<const float> DeviceMemory::beginInitialization(std::span<const float> array) {
  if (array.empty() || !fits(array)) return array;  // the client rejects it, unless the model has no tensors
  hostValues_.resize(array.size());
  copyStatus_ = copy(hostValues_, array);
  return copyStatus_.ok() ? std::span<const float>(hostValues_) : std::span<const float>();
}

Status DeviceMemory::endInitialization() {
  hostValues_ = {};
  return std::exchange(copyStatus_, Status());
}

}  // namespace psd::python

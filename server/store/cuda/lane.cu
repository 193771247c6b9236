#include <algorithm>
#include <utility>

#include "server/store/cuda/lane.cuh"

namespace psd {
namespace {

constexpr uint64_t kPinnedBytesMax = uint64_t{1} << 30;  // per pool
constexpr uint64_t kPinnedIdleBytesMax = uint64_t{128} << 20;
constexpr uint64_t kUnpinnedIdleBytesMax = uint64_t{64} << 20;

void* allocatePinned(size_t bytes) {
  void* memory = nullptr;
  if (cudaHostAlloc(&memory, bytes, cudaHostAllocPortable) == cudaSuccess) return memory;
  cudaGetLastError();  // clears the error, which the next kernel launch would report
  return nullptr;
}

void releasePinned(void* memory) { cudaFreeHost(memory); }

std::shared_ptr<StagingPool> makePinnedPool() {
  return StagingPool::make({.allocate = allocatePinned, .release = releasePinned, .scarce = true},
                           {.lentBytesMax = kPinnedBytesMax, .idleBytesMax = kPinnedIdleBytesMax});
}

std::shared_ptr<StagingPool> makeUnpinnedPool() {
  return StagingPool::make(StagingPool::hostMemory(),
                           {.lentBytesMax = UINT64_MAX, .idleBytesMax = kUnpinnedIdleBytesMax});
}

/// An operation in progress. Passes from the event loop's thread to the driver's thread, which completes it.
struct Completion {
  int device;
  Status queued;
  CudaLane::Staging staging;
  std::function<void(Status)> done;

  /// Makes no CUDA call that needs the driver; the driver's thread must not.
  void finish(cudaError_t error) {
    staging.clear();
    done(queued.ok() ? cudaStatus(device, "queued work", error) : std::move(queued));
  }
};

void CUDART_CB onComplete(cudaStream_t, cudaError_t error, void* completion) {
  std::unique_ptr<Completion>(static_cast<Completion*>(completion))->finish(error);
}

}  // namespace

CudaLane::CudaLane(int device)
    : device_(device),
      setUp_(setUp()),
      incoming_(makePinnedPool()),
      outgoing_(makePinnedPool()),
      unpinned_(makeUnpinnedPool()) {}

Status CudaLane::setUp() {
  PSD_ASSIGN_OR_RETURN(scratch_, DeviceFloats::allocate(device_, 2 * kScratchElements));  // sets the device
  // The memory is zeroed on the default stream, for which this lane's stream does not wait.
  PSD_RETURN_IF_ERROR(cudaStatus(device_, "cudaStreamSynchronize", cudaStreamSynchronize(nullptr)));
  return cudaStatus(device_, "cudaStreamCreate", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

CudaLane::~CudaLane() {
  if (stream_ == nullptr) return;
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

Status CudaLane::begin() {
  if (!setUp_.ok()) return setUp_;
  return cudaStatus(device_, "cudaSetDevice", cudaSetDevice(device_));
}

Status CudaLane::awaitStream() {
  return cudaStatus(device_, "cudaStreamSynchronize", cudaStreamSynchronize(stream_));
}

Status CudaLane::queueCopy(void* to, const void* from, uint64_t bytes) {
  return cudaStatus(device_, "cudaMemcpyAsync",
                    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
}

Status CudaLane::copyIn(float* to, std::span<const float> values, Staging& staged) {
  const StagedPieces pieces{values.size(), kScratchElements};
  return forEachStaged(pieces, staged, [&](uint64_t at, uint64_t count, float* buffer) {
    std::copy_n(values.data() + at, count, buffer);
    return queueCopy(to + at, buffer, count * sizeof(float));
  });
}

Result<std::shared_ptr<float>> CudaLane::outgoing(uint64_t count) {
  auto pinned = outgoing_->acquire(count);
  return pinned.ok() ? pinned : unpinned_->acquire(count);
}

void CudaLane::complete(Status queued, Staging&& staging, std::function<void(Status)> done) {
  auto completion = std::make_unique<Completion>(
      Completion{device_, std::move(queued), std::move(staging), std::move(done)});
  // Not cudaLaunchHostFunc, which is never called after the device has failed: the caller would wait forever.
  cudaError_t error = cudaErrorInvalidResourceHandle;
  if (stream_ != nullptr) {
    error = cudaStreamAddCallback(stream_, onComplete, completion.get(), 0);
    if (error == cudaSuccess) {
      completion.release();  // the driver's thread owns it now
      return;
    }
    cudaStreamSynchronize(stream_);  // no copy may still use the buffer when it is returned
  }
  completion->finish(error);
}

}  // namespace psd

#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/store/rows/row_storage.h"
#include "server/store/shard_storage.h"
#include "server/store/shared_device_memory.h"

namespace psd {

/// A shard to be allocated.
struct ShardRequest {
  uint64_t elements = 0;
  Optimizer optimizer;
};

/// One device that can hold shards and rows of embedding tables. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  /// For people and status: "cpu" or "cuda:0 (NVIDIA H200)".
  virtual std::string describe() const = 0;
  virtual std::unique_ptr<Lane> makeLane() = 0;
  /// From now on staged gradients take at most so many bytes of the device's memory, all shards together. On
  /// the CPU they take none of their own.
  virtual void limitStaged(uint64_t /*bytes*/) {}
  /// The most gradients that a trimmed mean or squared distances take here; a weighted sum takes any number.
  virtual uint32_t comparedMax() const { return UINT32_MAX; }
  /// Whether shareMemory() may have memory to share.
  virtual bool sharesMemory() const { return false; }
  /// Memory of this device for another process. ErrorCode::overloaded, naming the bytes, when the device has
  /// no room; ErrorCode::invalidArgument when it has none to share.
  virtual Result<std::shared_ptr<SharedDeviceMemory>> shareMemory(uint64_t /*bytes*/) {
    return Error{ErrorCode::invalidArgument, describe() + " has no memory of its own to share"};
  }
  /// Allocates one arena for these shards, zeroed, with their optimizers' state beside it. Fails
  /// (ErrorCode::overloaded) when the device has not enough memory, naming the bytes.
  virtual Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
      std::span<const ShardRequest> shards) = 0;
  /// A storage without rows for a table in one shard. Fails (ErrorCode::overloaded) when the device has no
  /// memory to work on rows, naming the bytes.
  virtual Result<std::unique_ptr<RowStorage>> makeRowStorage(uint32_t dim, const Optimizer& optimizer) = 0;
  /// allocate() for shards of these sizes, all with one optimizer.
  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(std::span<const uint64_t> elementCounts,
                                                              const Optimizer& optimizer) {
    std::vector<ShardRequest> shards;
    for (uint64_t elements : elementCounts) shards.push_back({elements, optimizer});
    return allocate(std::span<const ShardRequest>(shards));
  }
};

/// The CPU backend: anonymous memory, huge pages where the system gives them. With `sharing`, the weights
/// lie in a memory file to which others have that access; where the system gives none, they do not.
std::shared_ptr<Backend> makeCpuBackend(std::optional<SharedAccess> sharing = {});

/// The CUDA backend for device `index`. Without CUDA in the build, without a driver or without that
/// device: ErrorCode::invalidArgument that says which and how many devices there are.
Result<std::shared_ptr<Backend>> makeCudaBackend(int index);

/// Number of CUDA devices: 0 when the build or the machine has none. ErrorCode::unavailable, with the
/// driver's reason, when there may be some that this program cannot use.
Result<int> cudaDeviceCount();

}  // namespace psd

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

/// A shard to allocate.
struct ShardRequest {
  uint64_t elements = 0;
  Optimizer optimizer;
};

/// A device that stores shards and the rows of embedding tables. Thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Human-readable, also shown in the status: "cpu" or "cuda:0 (NVIDIA H200)".
  virtual std::string describe() const = 0;
  virtual std::unique_ptr<Lane> makeLane() = 0;
  /// Limits the device memory of staged gradients to `bytes`, over all shards. No effect on the CPU, where
  /// they take no memory of their own.
  virtual void limitStagedBytes(uint64_t /*bytes*/) {}
  /// Maximum number of gradients in a trimmed mean or in squared distances on this device; a weighted sum has
  /// no limit.
  virtual uint32_t comparedGradientsMax() const { return UINT32_MAX; }
  /// Whether this device supports shareMemory().
  virtual bool sharesMemory() const { return false; }
  /// Allocates device memory for another process to map. ErrorCode::overloaded, naming the bytes, if the
  /// device is out of memory; ErrorCode::invalidArgument if it cannot share memory.
  virtual Result<std::shared_ptr<SharedDeviceMemory>> shareMemory(uint64_t /*bytes*/) {
    return Error{ErrorCode::invalidArgument, describe() + " does not support shared device memory"};
  }
  /// Allocates one zeroed arena for the shards and their optimizer state. ErrorCode::overloaded, naming the
  /// bytes, if the device is out of memory.
  virtual Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(
      std::span<const ShardRequest> shards) = 0;
  /// Creates an empty row storage for one table in one shard. ErrorCode::overloaded, naming the bytes, if the
  /// device is out of memory for the row operations.
  virtual Result<std::unique_ptr<RowStorage>> makeRowStorage(uint32_t dim, const Optimizer& optimizer) = 0;
  /// Allocates shards of the given sizes, all with the same optimizer.
  Result<std::vector<std::unique_ptr<ShardStorage>>> allocate(std::span<const uint64_t> elementCounts,
                                                              const Optimizer& optimizer) {
    std::vector<ShardRequest> shards;
    for (uint64_t elements : elementCounts) shards.push_back({elements, optimizer});
    return allocate(std::span<const ShardRequest>(shards));
  }
};

/// Creates the CPU backend: anonymous memory, on huge pages where the system provides them. With `shared`,
/// the weights are in a memory file that other processes can map for reading; if the system does not provide
/// one, they stay in anonymous memory.
std::shared_ptr<Backend> makeCpuBackend(bool shared = false);

/// Creates the CUDA backend for device `index`. ErrorCode::invalidArgument, with the reason and the number of
/// devices, if the build has no CUDA or the machine has no driver or no such device.
Result<std::shared_ptr<Backend>> makeCudaBackend(int index);

/// Number of CUDA devices: 0 if the build or the machine has none. ErrorCode::unavailable, with the driver's
/// reason, if devices may exist that this program cannot use.
Result<int> cudaDeviceCount();

}  // namespace psd

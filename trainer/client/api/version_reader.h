#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/patch/content_sum.h"
#include "common/status/status.h"
#include "common/types/version_info.h"
#include "trainer/client/api/client.h"

namespace psd {

/// A version of the model that a daemon has published.
using PublishedVersion = VersionInfo;

/// A version in memory, whose checksums are verified. Immutable; a copy shares the bytes. Outlives its
/// reader.
struct FetchedVersion {
  struct Tensor {
    std::string name;
    std::string dtype;            ///< as in the file: "BF16", "F8_E4M3"
    std::vector<uint64_t> shape;  ///< row-major; an empty shape is a scalar
    uint64_t begin = 0, end = 0;  ///< its bytes in `file`
  };

  PublishedVersion info;
  std::shared_ptr<std::byte[]> file;  ///< a .safetensors file of info.bytes, 64-byte aligned
  std::vector<Tensor> tensors;        ///< in the order of their data
  uint64_t received = 0;              ///< bytes that came from the daemon: a patch, or the whole file
  std::string patchFault;             ///< why a patch of it was not used; empty: there was no fault
  std::vector<ContentSum> sums;       ///< contentSum() of each tensor

  std::span<const std::byte> bytesOf(const Tensor& tensor) const {
    return {file.get() + tensor.begin, tensor.end - tensor.begin};
  }
};

/// Reads the versions that a daemon publishes, over a connection of its own. When the connection breaks or
/// the daemon restarts, the call in progress reconnects and continues. It needs role reader.
///
/// Numbers rise within a history. A daemon that has lost its versions starts another one: the call that
/// notices it fails (modelMismatch), and later calls continue with the new history. Within a history
/// waitFor() and fetch(0) never return a smaller number than before.
///
/// Where several daemons serve the model, each publishes its part, and the reader combines the parts of one
/// moment: a version exists once all daemons have it, and is leased at all of them. `base` has no effect
/// then.
///
/// Thread-safe: any thread may make calls, and several calls may be in progress, of which one at a time is
/// waitFor(). No exception of the RPC library leaves this class.
class VersionReader {
 public:
  /// Most seconds for which a daemon grants a lease.
  static constexpr std::chrono::seconds kLeaseMax{600};

  /// Of `options` uses `servers`, `token`, `tls`, `connectTimeout`, `silence`, `retryTimeout`, `keepWaiting`
  /// and `onEvent`. Connects to the first server that answers. Where that is a replica which is further
  /// behind its source than `bound`, waitFor() and fetch(0) use another server; they fail (stale) if none is
  /// within it.
  static Result<std::unique_ptr<VersionReader>> connect(const ClientOptions& options,
                                                        const FreshnessBound& bound = {});
  /// Ends the leases of pin(). Ends calls of other threads as interrupt() does; they must have returned.
  virtual ~VersionReader() = default;

  /// The versions that exist, ascending.
  virtual Result<std::vector<PublishedVersion>> versions() = 0;
  /// How the versions of the daemon compare with those of their source.
  virtual Result<VersionFreshness> freshness() = 0;
  /// Waits until a version of at least this number exists, and returns the newest. deadlineExceeded after
  /// `timeout`, which includes reconnecting; without one the wait is unlimited. Fails (unavailable) when no
  /// daemon has answered for ClientOptions::retryTimeout, also during earlier calls.
  virtual Result<PublishedVersion> waitFor(uint64_t number,
                                           std::optional<std::chrono::milliseconds> timeout) = 0;
  /// Reads a version and verifies it; 0: the newest. Leases it meanwhile, so that it is not removed. With
  /// `base`, an earlier version, only what has changed since travels, if the daemon has a patch for it.
  /// notReady: it does not exist, or no longer. io: its bytes are damaged.
  virtual Result<FetchedVersion> fetch(uint64_t number, const FetchedVersion* base = nullptr) = 0;
  /// Keeps a version from being removed until unpin() or the end of this object, by a lease of 1 to 600
  /// seconds that a background thread renews: the daemon ends it that long after this process has died.
  /// Returns the number of the lease.
  virtual Result<uint64_t> pin(uint64_t number, std::chrono::seconds time) = 0;
  /// Ends a lease of pin(). Returns why it was lost before, if it was.
  virtual Status unpin(uint64_t lease) = 0;
  /// Ends all calls in progress and makes later ones fail (interrupted). Callable from any thread.
  virtual void interrupt() = 0;
  /// "tcp://host:port", of the daemon that it is connected to.
  virtual std::string server() const = 0;
};

}  // namespace psd

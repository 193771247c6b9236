#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "common/types/version_info.h"
#include "trainer/client/api/client.h"

namespace psd {

/// A box of a tensor whose weights this program owns; all of it in the simplest case.
struct TensorPart {
  std::string name;
  std::string dtype;                     ///< as in a .safetensors file: "BF16", "F8_E4M3"
  std::vector<uint64_t> shape;           ///< of the tensor
  std::vector<uint64_t> offset, extent;  ///< of the box, in elements; as long as `shape`
  std::span<const std::byte> bytes;      ///< of the box, row-major
};

/// Publishes versions of weights that programs train themselves, at a daemon with `publish.from`
/// "publishers", over a connection of its own. When the connection breaks or the daemon restarts, the call in
/// progress reconnects and continues. It needs role publisher.
///
/// Thread-safe: calls of several threads run one after another. No exception of the RPC library leaves this
/// class.
class VersionPublisher {
 public:
  /// Which of the programs that publish together this one is.
  struct Place {
    uint32_t rank = 0;
    uint32_t worldSize = 1;
  };

  /// Of `options` uses `servers`, `token`, `tls`, `connectTimeout`, `silence`, `retryTimeout`, `incarnation`,
  /// `chunkBytes`, `keepWaiting` and `onEvent`. Connects to the first server that answers.
  static Result<std::unique_ptr<VersionPublisher>> connect(const ClientOptions& options, Place place);
  /// Ends calls of other threads as interrupt() does; they must have returned.
  virtual ~VersionPublisher() = default;

  /// Gives this rank's parts of a step, and returns the version once all ranks have and it is durable. The
  /// tensors of the version are those that some rank gives; all ranks together give each element once, and
  /// the same box from several ranks counts once if its bytes are the same. Steps rise. A step that is
  /// published already with the same bytes returns its version.
  /// deadlineExceeded: `timeout` is over, or the daemon's wait for the other ranks; notReady: other ranks are
  /// at a newer step; rankTaken: another program has taken over the rank; invalidArgument, worldSizeMismatch,
  /// modelMismatch: the parts are wrong or do not fit together; overloaded: beyond the daemon's limits.
  virtual Result<VersionInfo> publish(uint64_t step, std::span<const TensorPart> parts,
                                      std::optional<std::chrono::milliseconds> timeout) = 0;
  /// Ends all calls in progress and makes later ones fail (interrupted). Callable from any thread.
  virtual void interrupt() = 0;
  /// "tcp://host:port", of the daemon that it is connected to.
  virtual std::string server() const = 0;
};

}  // namespace psd

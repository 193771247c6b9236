#pragma once

#include <cstdint>
#include <string>

#include "test/bench/measure.h"
#include "test/bench/peer_process.h"

namespace psd::bench {

enum class Direction { pull, push };

/// A plain stream between two processes. Requests of at most `pieceBytes`, `window` of them unanswered at a
/// time. A single request: pieceBytes >= bytes.
struct StreamOptions {
  StreamKind kind = StreamKind::unixSocket;
  Direction direction = Direction::pull;
  uint64_t bytes = 0;
  uint64_t pieceBytes = 0;
  uint32_t window = 1;
  int bufferBytes = 0;  ///< of the sockets; 0: the system's
};

/// Pull: the peer sends. Push: the peer receives and applies plain SGD as it receives.
Timing measureStream(const StreamOptions& options, double seconds);

/// Eight bytes in each direction.
Timing measurePingPong(StreamKind kind, double seconds);

enum class MemoryOperation {
  copy,
  copyStreaming,
  triad,
  sgd,
  momentum,
  adagrad,
  adam,
  lion,
  ftrl,
  ftrlRacing
};

struct MemoryTiming {
  Timing timing;
  uint64_t bytesMoved = 0;  ///< by one iteration: every read and write in the source
};

/// Loops of one thread over arrays of `bytes` each: memcpy; a copy with non-temporal stores; STREAM's triad
/// a[i] = b[i] + s · c[i]; one step of an optimizer, like the daemon's.
MemoryTiming measureMemory(MemoryOperation operation, uint64_t bytes, double seconds);

enum class CombineOperation { mean, median, trimmedMean, distances };

/// One thread combines `gradients` arrays of `bytes` each, as a synchronous round does, and applies the
/// result by plain SGD; a trimmed mean drops one at either end (at least 3 gradients). Or it computes the
/// distances between them.
MemoryTiming measureCombine(CombineOperation operation, uint32_t gradients, uint64_t bytes, double seconds);

/// Rows of an embedding table between two processes: the peer looks them up in a table like psd's own.
/// `ring`: ids and values are in shared memory, announced by a few bytes on the stream; otherwise they are
/// sent on the stream. `ids` are drawn for each transfer, by Zipf's law with the exponent `skew` unless that
/// is 0, and each is sent once.
struct RowWireOptions {
  StreamKind kind = StreamKind::unixSocket;
  bool ring = false;
  Direction direction = Direction::pull;  ///< push: applied by plain SGD
  uint64_t rows = 1'000'000;
  uint64_t ids = 100'000;
  uint32_t dim = 32;
  double skew = 0;
};

struct RowWireTiming {
  Timing timing;
  double rowsPerSecond = 0;  ///< median
};

RowWireTiming measureRowWire(const RowWireOptions& options, double seconds);

/// Cap'n Proto's own two-party server and client, unmodified: an empty call (bytes = 0), or one answer with
/// `bytes`.
Timing measureCapnp(StreamKind kind, uint64_t bytes, double seconds);

}  // namespace psd::bench

#pragma once

#include <cstdint>
#include <string>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// The value of a key.
struct Stored {
  std::string text;
  uint64_t revision = 0;  ///< rises with every change of the key; 0: the key does not exist
  bool operator==(const Stored&) const = default;
};

/// Outcome of a swap.
struct Swapped {
  bool won = false;
  Stored now;  ///< if won, the text with its new revision; otherwise the value found
};

/// Maximum size of a text, in bytes.
inline constexpr size_t kEngineTextBytesMax = size_t{1} << 20;

/// A register shared by several daemons: texts by key, with linearizable reads and compare-and-swap writes.
/// Owned by one event loop; its promises do not outlive it, and may be dropped at any time.
class Engine {
 public:
  virtual ~Engine() noexcept(false) = default;

  /// The key's value, including all swaps that completed before the call.
  virtual kj::Promise<Result<Stored>> read(std::string key) = 0;

  /// Writes the text if the key's revision is `expectedRevision` (0: the key does not exist). An engine
  /// identifies a writer by the bytes of its text, so texts must be unique: include a random number. If the
  /// swap is not won, the text may still have been stored for a moment, before the value that is there now.
  ///
  /// An error means *unknown*, not failure: the swap may have happened, and may still happen for as long as
  /// the revision stays the same. Only a changed revision of the key, or another swap that is won, settles
  /// it. Dropping the promise also leaves the outcome unknown. Only invalidArgument means that the swap was
  /// never sent.
  virtual kj::Promise<Result<Swapped>> swap(std::string key, uint64_t expectedRevision, std::string text) = 0;

  /// The key's value once its revision differs from `knownRevision`, a revision from an earlier answer:
  /// higher, or lower if the key was deleted or the engine lost its data. May skip intermediate changes.
  /// Keeps waiting while the engine is unreachable; returns only errors that waiting does not fix, such as
  /// forbidden.
  virtual kj::Promise<Result<Stored>> changed(std::string key, uint64_t knownRevision) = 0;

  /// Why the last request, also one of changed(), was not answered; empty if it was.
  virtual std::string trouble() const = 0;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>

#include <kj/async.h>

#include "common/status/status.h"

namespace psd {

/// What a key holds.
struct Stored {
  std::string text;
  uint64_t revision = 0;  ///< rises with every change of the key; 0: the key is not there
  bool operator==(const Stored&) const = default;
};

/// What came of a swap.
struct Swapped {
  bool won = false;
  Stored now;  ///< where it won: the text with its new revision; else what is there in its place
};

/// The most bytes of a text that an engine takes.
inline constexpr size_t kEngineTextBytesMax = size_t{1} << 20;

/// A register that several daemons share: texts by key, each read as it is now (linearizable) and changed by
/// compare-and-swap. Owned by one event loop; its promises do not outlive it, and may be dropped at any time.
class Engine {
 public:
  virtual ~Engine() noexcept(false) = default;

  /// What the key holds, with all swaps that ended before the call.
  virtual kj::Promise<Result<Stored>> read(std::string key) = 0;

  /// Writes the text where the key's revision is `expectedRevision` (0: where there is no key). Texts are
  /// told apart by their bytes, so a text is one that nobody wrote before: it has a random number in it.
  /// Where it is not won, the text may have stood there for a moment, and the one that is there was written
  /// after it.
  ///
  /// An error means *unknown*, never no: the swap may have happened, and may still happen for as long as the
  /// revision stays. Only a key whose revision has moved on, or another swap that is won, settles it. A
  /// promise that is dropped is an error that nobody heard of. An invalidArgument alone was never asked.
  virtual kj::Promise<Result<Swapped>> swap(std::string key, uint64_t expectedRevision, std::string text) = 0;

  /// What the key holds, once its revision is another than `knownRevision`, of an answer from before: above
  /// it, or, where the key is gone or the engine has lost what it held, below. Changes in between may be left
  /// out. Waits while the engine is away; the errors are those that waiting does not mend, as forbidden.
  virtual kj::Promise<Result<Stored>> changed(std::string key, uint64_t knownRevision) = 0;

  /// Why it did not answer when it was last asked, also by changed(), which waits; empty: it did.
  virtual std::string trouble() const = 0;
};

}  // namespace psd

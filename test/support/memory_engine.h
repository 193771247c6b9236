#pragma once

#include <list>
#include <map>
#include <string>
#include <vector>

#include "server/engine/engine.h"

namespace psd::testing {

/// The store that the engines of all daemons of a test read and change. Owned by one event loop; outlives
/// them.
class MemoryRegister {
 public:
  Stored read(const std::string& key) const;
  Swapped swap(const std::string& key, uint64_t expectedRevision, const std::string& text);
  void put(const std::string& key, const std::string& text);
  void erase(const std::string& key);
  /// Loses all content; revisions start again.
  void lose();
  /// Resolves with the next change of any key.
  kj::Promise<void> whenChanged();

 private:
  void changed();

  std::map<std::string, Stored> keys_;
  uint64_t revision_ = 0;  // of the last change
  std::list<kj::Own<kj::PromiseFulfiller<void>>> waiting_;
};

/// One daemon's engine in memory, which loses and delays calls on request. Owned by one event loop.
class MemoryEngine final : public Engine {
 public:
  explicit MemoryEngine(MemoryRegister& all) : register_(all) {}

  /// While the engine is away calls fail, and waiting calls keep waiting.
  void setAway(bool away);
  /// The next `swaps` swaps do not happen, and are answered with an error.
  void loseRequests(size_t swaps) { lostRequests_ = swaps; }
  /// The next `swaps` swaps happen, and are answered with an error.
  void loseAnswers(size_t swaps) { lostAnswers_ = swaps; }
  /// The next `swaps` swaps are answered with an error, and happen, if they still can, at deliverLate().
  void delayRequests(size_t swaps) { lateRequests_ = swaps; }
  void deliverLate();
  /// Calls from now on are executed immediately and answered at releaseAnswers().
  void holdAnswers() { holding_ = true; }
  void releaseAnswers();
  /// The number of swaps requested, with any outcome.
  size_t swaps() const { return swaps_; }
  /// The number of calls that waited for a change.
  size_t watches() const { return watches_; }

  kj::Promise<Result<Stored>> read(std::string key) override;
  kj::Promise<Result<Swapped>> swap(std::string key, uint64_t expectedRevision, std::string text) override;
  kj::Promise<Result<Stored>> changed(std::string key, uint64_t knownRevision) override;
  std::string trouble() const override;

 private:
  struct Late {
    std::string key;
    uint64_t expectedRevision;
    std::string text;
  };
  template <class T>
  kj::Promise<Result<T>> answer(Result<T> result);

  MemoryRegister& register_;
  bool away_ = false, holding_ = false;
  std::string trouble_;  // the last answer was lost
  size_t lostRequests_ = 0, lostAnswers_ = 0, lateRequests_ = 0, swaps_ = 0, watches_ = 0;
  std::vector<Late> late_;
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> held_;
  std::vector<kj::Own<kj::PromiseFulfiller<void>>> absent_;  // waiting for the engine to return
};

}  // namespace psd::testing

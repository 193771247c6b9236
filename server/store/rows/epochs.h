#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace psd {

/// Epoch-based reclamation: what readers without a lock may still look at is not used for anything else.
///
/// A reader holds a Guard for the time of one call. A writer takes what it frees out of everybody's reach,
/// asks for a stamp(), and uses the memory again once passed(stamp). Thread-safe.
class Epochs {
 public:
  static constexpr uint32_t kGuardsMax = 64;  ///< at a time; one more waits for one of them to end

  Epochs() = default;
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  /// While it lives, nothing that can be reached when it is made is used for anything else. Not to be
  /// nested: who holds one must not wait for another. It may end on another thread. To be held shortly: it
  /// holds up every writer's memory. Costs some 10 ns.
  class Guard {
   public:
    explicit Guard(Epochs& epochs) : epoch_(epochs.enter()) {}
    ~Guard() { epoch_.store(kIdle, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic<uint64_t>& epoch_;
  };

  /// For what was taken out of reach before this call.
  uint64_t stamp() { return now_.fetch_add(1, std::memory_order_seq_cst); }
  /// Whether no guard lives that could have reached what a stamp, of stamp(), stands for.
  bool passed(uint64_t stamp);

 private:
  static constexpr uint64_t kIdle = 0;

  struct alignas(64) Place {
    std::atomic<uint64_t> epoch{kIdle};  // at which its guard was made
  };

  std::atomic<uint64_t>& enter();

  std::atomic<uint64_t> now_{1};
  std::atomic<uint64_t> passedBefore_{0};  // every stamp below has passed
  std::array<Place, kGuardsMax> places_;
};

}  // namespace psd

#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace psd {

/// Epoch-based reclamation: memory that lock-free readers may still access is not reused.
///
/// A reader holds a Guard during one call. A writer makes the memory it frees unreachable, obtains a stamp(),
/// and reuses the memory once passed(stamp). Thread-safe.
class Epochs {
 public:
  static constexpr uint32_t kGuardsMax = 64;  ///< concurrent guards; another one waits for one of them to end

  Epochs() = default;
  Epochs(const Epochs&) = delete;
  Epochs& operator=(const Epochs&) = delete;

  /// While it lives, nothing that was reachable at its construction is reused. Guards must not be nested: a
  /// holder must not wait for another guard. A guard may be destroyed on another thread. Hold it briefly: it
  /// delays reclamation for all writers. Costs about 10 ns.
  class Guard {
   public:
    explicit Guard(Epochs& epochs) : epoch_(epochs.enter()) {}
    ~Guard() { epoch_.store(kIdle, std::memory_order_release); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    std::atomic<uint64_t>& epoch_;
  };

  /// A stamp for everything made unreachable before this call.
  uint64_t stamp() { return now_.fetch_add(1, std::memory_order_seq_cst); }
  /// Whether no guard remains that could reach what `stamp` covers.
  bool passed(uint64_t stamp);

 private:
  static constexpr uint64_t kIdle = 0;

  struct alignas(64) Place {
    std::atomic<uint64_t> epoch{kIdle};  // at the construction of its guard
  };

  std::atomic<uint64_t>& enter();

  std::atomic<uint64_t> now_{1};
  std::atomic<uint64_t> passedBefore_{0};  // all smaller stamps have passed
  std::array<Place, kGuardsMax> places_;
};

}  // namespace psd

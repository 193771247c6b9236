#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace psd {

/// How many slices of one direction may be unanswered at once, so that a long way is filled: twice what is
/// under way at the rate at which answers come over the shortest round trip that was seen (the product of
/// bandwidth and delay). The second half is room to find out whether more would go through; where it does
/// not, slices only wait longer, so that the product stays as it is. Round trips and rates are those of the
/// newest transfer and of the one before. Pure: no threads, locks or clocks. Owned by whoever serialises the
/// calls; times must not go back.
class GrowingWindow {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// What is to be known of a slice when it is answered.
  struct Sent {
    TimePoint when;
    uint64_t answeredBefore = 0;
  };

  /// From `least` to `most`; the same number: it stays.
  explicit GrowingWindow(uint32_t least, uint32_t most) : least_(least), most_(most), slices_(least) {}

  /// Other limits; what is known of the way, and what is under way, stays.
  void setLimits(uint32_t least, uint32_t most);

  uint32_t slices() const { return slices_; }
  /// A slice is sent; where none is under way, the first of another transfer.
  Sent sent(TimePoint now);
  void answered(const Sent& slice, TimePoint now);

 private:
  struct Transfer {
    double shortest = std::numeric_limits<double>::infinity();  ///< round trip, in seconds
    double underWay = 0;  ///< slices over a shortest round trip, at the highest rate
  };

  uint32_t least_, most_;
  uint32_t slices_;
  uint64_t unanswered_ = 0, answered_ = 0;
  Transfer newest_, before_;
};

}  // namespace psd

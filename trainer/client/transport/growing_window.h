#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace psd {

/// Limit on the unanswered slices of one direction, adapted to fill a path with a long round trip: twice the
/// bandwidth-delay product, which is the highest rate of answers times the shortest round trip seen. The
/// factor of two probes whether more would get through; if not, slices only wait longer, and the product
/// stays the same. Round trips and rates are those of the newest transfer and the previous one. Pure: no
/// threads, locks or clocks. The owner serializes the calls; times must not go backwards.
class GrowingWindow {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// State recorded when a slice is sent, needed when it is answered.
  struct Sent {
    TimePoint when;
    uint64_t answeredBefore = 0;
  };

  /// From `least` to `most`; constant if they are equal.
  explicit GrowingWindow(uint32_t least, uint32_t most) : least_(least), most_(most), slices_(least) {}

  /// Changes the limits; measurements and unanswered slices are kept.
  void setLimits(uint32_t least, uint32_t most);

  uint32_t slices() const { return slices_; }
  /// A slice is sent. If none is unanswered, it starts a new transfer.
  Sent sent(TimePoint now);
  void answered(const Sent& slice, TimePoint now);

 private:
  struct Transfer {
    double shortest = std::numeric_limits<double>::infinity();  ///< round trip, in seconds
    double underWay = 0;  ///< slices per shortest round trip, at the highest rate
  };

  uint32_t least_, most_;
  uint32_t slices_;
  uint64_t unanswered_ = 0, answered_ = 0;
  Transfer newest_, previous_;
};

}  // namespace psd

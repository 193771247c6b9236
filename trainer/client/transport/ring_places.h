#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "common/status/status.h"
#include "trainer/client/transport/slices.h"

namespace psd {

/// How a ring is divided.
struct RingSizes {
  /// Up to `window` places, each for the largest of these slices, in at most `bytesMax`.
  static RingSizes of(const std::vector<Slice>& slices, uint64_t bytesMax, uint32_t window);

  uint64_t placeBytes = 0;
  uint32_t places = 0;
};

/// Bytes of a slice of gradients through a ring of at most `ringBytes`, between `chunkBytes` and `most`: each
/// slice wakes both ends, and a sixteenth of the model lets the daemon start soon. A pure function.
uint64_t ringSliceBytes(uint64_t modelBytes, uint64_t chunkBytes, uint64_t most, uint64_t ringBytes);

/// As many of 2 to `most` slices as a ring of 8 MiB holds, which stays in a processor's cache. A pure
/// function.
uint32_t ringWindow(const std::vector<Slice>& slices, uint32_t most);

/// Allocates the places of a ring, of one slice each. A place that was announced to the daemon stays taken
/// until the daemon answers: after the connection broke, the daemon may still read or write it. Belongs to
/// the channel's event loop.
class RingPlaces {
 public:
  /// A taken place. The RingPlaces outlives it. Destroyed without release(), the place is lost, and with it
  /// the ring: pending and later requests for a place fail as on a broken connection.
  class Place {
   public:
    Place(RingPlaces& places, uint32_t index) : places_(&places), index_(index) {}
    Place(Place&& other) noexcept : places_(std::exchange(other.places_, nullptr)), index_(other.index_) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (places_ != nullptr) places_->lose();
    }
    /// Byte offset of the place in the ring.
    uint64_t at() const { return places_->begin_ + index_ * places_->bytes_; }
    /// The daemon has answered, and the place has been read if needed. Called once.
    void release() { std::exchange(places_, nullptr)->release(index_); }

   private:
    RingPlaces* places_;
    uint32_t index_;
  };

  /// `count` places of `bytes` each, from byte `begin` of the ring.
  RingPlaces(uint64_t begin, uint64_t bytes, uint32_t count);

  uint32_t count() const { return count_; }
  /// ErrorCode::badSlice if the slice is larger than a place.
  Status checkSlice(uint64_t bytes) const;
  /// Whether take() is possible now for a slice of `bytes`.
  bool hasPlace(uint64_t bytes) const { return bytes <= bytes_ && (lost_ || !free_.empty()); }
  /// Takes a place: one must be free, or the ring lost.
  Place take();
  /// Takes a place once one is free, in FIFO order.
  kj::Promise<Place> takeWhenFree();

 private:
  void release(uint32_t index);
  void lose();
  static kj::Exception broken();

  const uint64_t begin_, bytes_;
  const uint32_t count_;
  std::vector<uint32_t> free_;  // LIFO: the last place freed may still be in a cache
  std::deque<kj::Own<kj::PromiseFulfiller<Place>>> waiting_;
  bool lost_ = false;
};

}  // namespace psd

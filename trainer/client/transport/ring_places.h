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
  /// Places for the largest of these slices, in `bytesMax` at most; `window` of them at most.
  static RingSizes of(const std::vector<Slice>& slices, uint64_t bytesMax, uint32_t window);

  uint64_t placeBytes = 0;
  uint32_t places = 0;
};

/// Which places of a ring, of one slice each, are taken. A place of which the daemon was told is taken until
/// it answers: where the connection broke, it may come to read or write it still. Belongs to the channel's
/// event loop.
class RingPlaces {
 public:
  /// A place that is taken. The ring's places outlive it. Dropped without giveBack(), it is lost, and with it
  /// the ring: who waits for a place, or takes one, is told that the connection broke.
  class Place {
   public:
    Place(RingPlaces& places, uint32_t index) : places_(&places), index_(index) {}
    Place(Place&& other) noexcept : places_(std::exchange(other.places_, nullptr)), index_(other.index_) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (places_ != nullptr) places_->lose();
    }
    /// Byte of the ring at which it begins.
    uint64_t at() const { return places_->begin_ + index_ * places_->bytes_; }
    /// The daemon has answered, and what was to be read of it has been. Once.
    void giveBack() { std::exchange(places_, nullptr)->giveBack(index_); }

   private:
    RingPlaces* places_;
    uint32_t index_;
  };

  /// `count` places of so many bytes, from byte `begin` of the ring on.
  RingPlaces(uint64_t begin, uint64_t bytes, uint32_t count);

  uint32_t count() const { return count_; }
  /// ErrorCode::badSlice for one that has no room in a place.
  Status checkSlice(uint64_t bytes) const;
  /// Whether a slice of so many bytes may take() a place now.
  bool hasRoom(uint64_t bytes) const { return bytes <= bytes_ && (lost_ || !free_.empty()); }
  /// Takes a place: one must be free, or the ring lost.
  Place take();
  /// Takes a place once one is free, after those who waited before.
  kj::Promise<Place> takeWhenFree();

 private:
  void giveBack(uint32_t index);
  void lose();
  static kj::Exception broken();

  const uint64_t begin_, bytes_;
  const uint32_t count_;
  std::vector<uint32_t> free_;  // the last given back is taken first: it may still be in a cache
  std::deque<kj::Own<kj::PromiseFulfiller<Place>>> waiting_;
  bool lost_ = false;
};

}  // namespace psd

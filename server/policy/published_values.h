#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/codec/codec.h"
#include "common/types/ids.h"
#include "server/store/shard_storage.h"

namespace psd {

/// What a peer reports that it holds of a slice: the values of `version` in view `view`. View 0: nothing.
struct HeldValues {
  uint64_t view = 0;
  Version version;
};

/// How a slice is sent to the peer.
struct PublishedSlice {
  enum class What {
    values,  ///< float32; the peer retains them if `view` is not 0
    delta,   ///< the encoded difference to what the peer holds
    same,    ///< no bytes: the peer holds the newest values
  };
  What what = What::values;
  uint64_t view = 0;
  Version version;
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = nullptr;  ///< keeps `bytes` readable
};

/// The view of the parameters held by trainers that pull encoded differences: the last published values of
/// each slice, and the difference that led to them, encoded once for all trainers. The error of the codec
/// remains between the parameters and this view, and is part of the next difference (error feedback). Each
/// daemon process starts its own view with a random number, so that no peer applies a difference to the view
/// of a previous process. Memory: a copy of every slice pulled this way, and its newest encoded difference.
/// Thread-safe.
class PublishedValues {
 public:
  PublishedValues();

  /// The slice of a shard that starts at element `offset`; `newest`: its values at `version`. A slice that
  /// overlaps one requested earlier is sent as values and not retained.
  PublishedSlice answer(uint32_t shard, uint64_t offset, const ReadView& newest, Version version,
                        const HeldValues& held, const Codec& codec);

 private:
  using Values = std::vector<float>;
  /// A slice that was requested.
  struct Piece {
    std::mutex mutex;  // guards the members below
    std::shared_ptr<const Values> values;
    Version version;
    std::shared_ptr<const std::vector<uint64_t>> delta;  // from `before` to `version`; null: none
    uint64_t deltaBytes = 0;
    Version before;
  };

  /// Null if the slice overlaps another one.
  std::shared_ptr<Piece> pieceAt(uint32_t shard, uint64_t offset, uint64_t count);
  /// With the piece's mutex held: publishes the values of `version`, unless it has a newer version.
  static void publish(Piece& piece, std::span<const float> newest, Version version, const Codec& codec);

  const uint64_t number_;
  std::mutex mutex_;  // guards the members below
  struct Entry {
    uint64_t count = 0;
    std::shared_ptr<Piece> piece;
  };
  std::map<std::pair<uint32_t, uint64_t>, Entry> pieces_;  // by shard and offset
};

}  // namespace psd

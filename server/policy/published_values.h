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

/// What a peer says that it holds of a slice: the values of this version in the view of that number. 0: none.
struct HeldValues {
  uint64_t view = 0;
  Version version;
};

/// How the slice travels to it.
struct PublishedSlice {
  enum class What {
    values,  ///< float32, which the peer holds from now on if `view` is not 0
    delta,   ///< what a codec made of the difference to what it holds
    same,    ///< no bytes: it holds the newest
  };
  What what = What::values;
  uint64_t view = 0;
  Version version;
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = nullptr;  ///< keeps `bytes` readable
};

/// The parameters as trainers have them that pull differences: what was published of each slice before, and
/// then differences in few bits, each encoded once for all. What a codec leaves out of one stays between the
/// parameters and this view of them, and is in the next difference. The view begins with the parameters when
/// a daemon does: its number is drawn, so that nobody takes a difference to the view of a daemon before.
/// Holds a copy of what is pulled so, and the bytes of its newest differences. Thread-safe.
class PublishedValues {
 public:
  PublishedValues();

  /// The slice from element `offset` of a shard on, of which `newest` are the values in this version. Slices
  /// that lie across one that was asked for before travel whole and are not held.
  PublishedSlice answer(uint32_t shard, uint64_t offset, const ReadView& newest, Version version,
                        const HeldValues& held, const Codec& codec);

 private:
  using Values = std::vector<float>;
  /// A slice that was asked for.
  struct Piece {
    std::mutex mutex;  // guards what follows
    std::shared_ptr<const Values> values;
    Version version;
    std::shared_ptr<const std::vector<uint64_t>> delta;  // to `version` from `before`; null: there is none
    uint64_t deltaBytes = 0;
    Version before;
  };

  /// Null where it lies across another one.
  std::shared_ptr<Piece> pieceAt(uint32_t shard, uint64_t offset, uint64_t count);
  /// With the piece's mutex held: makes the values of this version its own.
  static void publish(Piece& piece, std::span<const float> newest, Version version, const Codec& codec);

  const uint64_t number_;
  std::mutex mutex_;  // guards what follows
  struct Entry {
    uint64_t count = 0;
    std::shared_ptr<Piece> piece;
  };
  std::map<std::pair<uint32_t, uint64_t>, Entry> pieces_;  // by shard and offset
};

}  // namespace psd

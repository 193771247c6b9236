#include "server/policy/published_values.h"

#include <iterator>

#include "common/codec/delta.h"
#include "common/os/random_id.h"

namespace psd {

PublishedValues::PublishedValues() : number_(drawId()) {}

std::shared_ptr<PublishedValues::Piece> PublishedValues::pieceAt(uint32_t shard, uint64_t offset,
                                                                 uint64_t count) {
  const std::lock_guard lock(mutex_);
  const auto next = pieces_.lower_bound({shard, offset});
  if (next != pieces_.end() && next->first.first == shard) {
    if (next->first.second == offset && next->second.count == count) return next->second.piece;
    if (next->first.second < offset + count) return nullptr;
  }
  if (next != pieces_.begin()) {
    const auto& [place, entry] = *std::prev(next);
    if (place.first == shard && place.second + entry.count > offset) return nullptr;
  }
  auto piece = std::make_shared<Piece>();
  pieces_.insert(next, {{shard, offset}, {count, piece}});
  return piece;
}

PublishedSlice PublishedValues::answer(uint32_t shard, uint64_t offset, const ReadView& newest,
                                       Version version, const HeldValues& held, const Codec& codec) {
  using What = PublishedSlice::What;
  const auto whole = [](const auto& values) { return std::as_bytes(std::span<const float>(values)); };
  const auto piece = pieceAt(shard, offset, newest.values.size());
  if (!piece) return {What::values, 0, version, whole(newest.values), newest.owner};
  const std::lock_guard lock(piece->mutex);
  publish(*piece, newest.values, version, codec);
  PublishedSlice slice{What::values, number_, piece->version};
  const bool ofThisView = held.view == number_;
  if (ofThisView && held.version == piece->version) {
    slice.what = What::same;
  } else if (ofThisView && piece->delta && held.version == piece->before) {
    slice.what = What::delta;
    slice.bytes = std::as_bytes(std::span(*piece->delta)).first(piece->deltaBytes);
    slice.owner = piece->delta;
  } else {
    slice.bytes = whole(*piece->values);
    slice.owner = piece->values;
  }
  return slice;
}

void PublishedValues::publish(Piece& piece, std::span<const float> newest, Version version,
                              const Codec& codec) {
  const bool first = !piece.values;
  if (!first && version <= piece.version) return;  // an older pull
  const auto publishValues = [&] {
    piece.values = std::make_shared<const Values>(newest.begin(), newest.end());
    piece.delta = nullptr;
  };
  if (first) {
    publishValues();
  } else {
    Values difference(newest.begin(), newest.end());
    const Values& before = *piece.values;
    for (size_t i = 0; i < difference.size(); i++) difference[i] -= before[i];
    const uint64_t bytes = codec.encodedBytes(difference.size());
    // A codec may read up to 7 bytes past the end.
    auto delta = std::make_shared<std::vector<uint64_t>>(bytes / sizeof(uint64_t) + 2);
    auto* const out = reinterpret_cast<std::byte*>(delta->data());
    if (codec.encode(difference, 0, out).ok()) {
      auto values = std::make_shared<Values>(before);
      addDelta(codec, Codec::Bytes(out, bytes), *values);
      piece.values = std::move(values);
      piece.delta = std::move(delta);
      piece.deltaBytes = bytes;
      piece.before = piece.version;
    } else {
      publishValues();  // a value changed by more than the codec can represent
    }
  }
  piece.version = version;
}

}  // namespace psd

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/status/status.h"

namespace psd {

/// A slot of a shared-memory file of versions: what its image is. Of the active slot, this does not change.
struct SharedSlot {
  uint64_t generation = 0;  ///< 0: the slot is empty, or being written
  uint64_t number = 0, history = 0;
  uint64_t bytes = 0;  ///< of the image
  std::array<uint64_t, 4> reserved{};
};

/// The first bytes of a shared-memory file of versions, little-endian (docs/reference/protocol.md). The rest
/// of the file are two slots, each with the image of a version.
struct SharedHeader {
  static constexpr std::array<char, 8> kMagic{'P', 'S', 'D', 'S', 'H', 'A', 'R', 'E'};
  static constexpr uint64_t kFormat = 1;
  /// The slots' places are multiples of this: of the pages of any processor.
  static constexpr uint64_t kGrain = 64u << 10;
  /// Bytes of the file that readers and the follower lock.
  static constexpr int64_t kFollowerLock = 0, kSlotLock = 1;

  std::array<char, 8> magic = kMagic;
  uint64_t format = kFormat;
  uint64_t capacity = 0;             ///< bytes of a slot, a multiple of kGrain
  std::array<uint64_t, 2> slotAt{};  ///< places of the slots in the file
  std::array<uint64_t, 3> reserved{};
  uint64_t generation = 0;  ///< the active slot is number `generation % 2`; 0: none
  uint64_t replaced = 0;    ///< 1: the path has another file, or will have soon
  std::array<uint64_t, 6> reservedWords{};
  std::array<SharedSlot, 2> slots;

  static SharedHeader ofCapacity(uint64_t capacity) {
    SharedHeader header;
    header.capacity = capacity;
    header.slotAt = {kGrain, kGrain + capacity};
    return header;
  }
  uint64_t fileBytes() const { return kGrain + 2 * capacity; }
  const SharedSlot& active() const { return slots[generation % 2]; }
};
static_assert(sizeof(SharedHeader) == 256 && offsetof(SharedHeader, generation) == 64 &&
              offsetof(SharedHeader, slots) == 128);

/// Reads the header of a file of `fileBytes` bytes. The error says what is wrong, and does not name the file.
inline Result<SharedHeader> readSharedHeader(std::span<const std::byte> bytes, uint64_t fileBytes) {
  const auto bad = [](const char* why) { return Error{ErrorCode::io, why}; };
  SharedHeader header;
  if (bytes.size() < sizeof header) return bad("it is too short");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != SharedHeader::kMagic) return bad("it begins differently");
  if (header.format != SharedHeader::kFormat) return bad("its format is of another version of psd");
  const uint64_t grain = SharedHeader::kGrain;
  if (header.capacity % grain != 0 || header.capacity > fileBytes || header.fileBytes() != fileBytes ||
      header.slotAt != SharedHeader::ofCapacity(header.capacity).slotAt) {
    return bad("its slots do not match its size");
  }
  if (header.generation == 0) return header;
  if (header.active().generation != header.generation || header.active().bytes > header.capacity) {
    return bad("its active slot is damaged");
  }
  return header;
}

}  // namespace psd

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/types/row_hash.h"
#include "server/store/rows/epochs.h"
#include "server/store/rows/mapped_block.h"
#include "server/store/rows/retired.h"
#include "server/store/rows/row_segment.h"

namespace psd {

/// An entry of a RowIndex. A value type.
struct RowEntry {
  uint64_t hash = 0;  ///< of the id
  uint64_t id = 0;
  uint32_t row = kNoRow;
  bool operator==(const RowEntry&) const = default;
};

/// How far a walk through a RowIndex is. A value type.
struct RowCursor {
  uint64_t hash = 0;   ///< what is below has been visited
  bool ended = false;  ///< nothing is left
};

/// Which entries a walk is for. To be called once for each.
using RowFilter = std::function<bool(const RowEntry&)>;

/// Row numbers by id, for ids of one range of the hash space: an extendible hash table.
///
/// A directory leads from the upper bits of the hash, seen from the range's begin, to a segment of 64 KiB. A
/// segment that has its share is replaced by two, by the next bit; no other is touched, so the longest insert
/// is one split. In the order of the directory, segments are in the order of hashes.
///
/// Readers take no lock and hold a guard of `epochs` for the call: find(), findBatch(), pipeline() and
/// next(). All else is for one writer at a time; its numbers may be read by any thread.
class RowIndex {
 public:
  /// 2^22 segments of half a load are beyond what row numbers can count. Ids made so that their hashes agree
  /// in more upper bits than that find no room.
  static constexpr uint32_t kDepthMax = 22;
  static constexpr uint32_t kBlock = 32;  ///< ids that pipeline() looks up together

  RowIndex(HashRange range, std::shared_ptr<Epochs> epochs);
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  /// The row number of an id, or kNoRow.
  uint32_t find(uint64_t id) const;
  /// rows[i] = find(ids[i]). Returns how many are there.
  uint64_t findBatch(std::span<const uint64_t> ids, std::span<uint32_t> rows) const;
  /// Looks all ids up, block after block, while memory fetches what later blocks need. Calls
  /// `use(first, rows, next)` for each block: rows are those of ids[first …], or kNoRow, and `next` those of
  /// the block behind it, to be prefetched.
  template <class Use>
  void pipeline(std::span<const uint64_t> ids, const Use& use) const;

  /// Makes `row` the row number of an id that has none. Returns the id's row number then, which is another if
  /// it had one; kNoRow if there is no room: see kDepthMax, or the system has no memory.
  uint32_t insert(uint64_t id, uint32_t row);
  /// Takes out those of the ids that are there, and appends their row numbers to `rows`; ids may repeat.
  /// False if the system has no memory: then some are taken out, which are in `rows`, and others not.
  bool erase(std::span<const uint64_t> ids, std::vector<uint32_t>& rows);
  /// Makes memory resident for the splits until `entries` entries in all are there. False if the system has
  /// no memory.
  bool reserve(uint64_t entries);
  /// `out` = the entries of the next segment that has any from `cursor` on, by hash; `cursor` is behind it.
  /// Empty at the end alone.
  void next(RowCursor& cursor, std::vector<RowEntry>& out) const;
  /// `out` = the entries of the next segment from `cursor` on, in any order; `cursor` is behind it. May be
  /// empty before the end.
  void nextUnsorted(RowCursor& cursor, std::vector<RowEntry>& out) const;
  /// `out` = those entries of the next segment from `cursor` on for which `keep` is true, by hash; `cursor`
  /// is behind it. May be empty before the end.
  void next(RowCursor& cursor, std::vector<RowEntry>& out, const RowFilter& keep) const;

  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }
  uint64_t segments() const { return segments_.load(std::memory_order_relaxed); }
  uint64_t splits() const { return splits_.load(std::memory_order_relaxed); }
  /// Of segments and directory, those that guards still look at included.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// That the system gave for segments; for the writer.
  uint64_t mappedBytes() const;

 private:
  using SegmentPointer = std::atomic<RowSegment*>;

  /// Immutable but for the segments' pointers, which are stored with release.
  struct Directory {
    explicit Directory(uint32_t depth);
    const uint32_t depth;
    const std::unique_ptr<SegmentPointer[]> segments;  // 2^depth
    uint64_t size() const { return uint64_t{1} << depth; }
    uint64_t bytes() const { return size() * sizeof(SegmentPointer); }
    /// Where a place in the range is.
    uint64_t indexOf(uint64_t place) const { return place >> 1 >> (63 - depth); }
  };

  /// What a block of ids is looked up with.
  struct Probes {
    std::array<uint64_t, kBlock> hashes;
    std::array<const RowSegment*, kBlock> segments;
    std::array<uint32_t, kBlock> rows;
    uint32_t count = 0;
  };

  /// The hash as a fraction of the range, less than twice that, in 64 bits: keeps the order of hashes.
  uint64_t placeOf(uint64_t hash) const { return (hash - range_.first) << shift_; }
  RowSegment* segmentAt(uint64_t place) const {
    const Directory& directory = *directory_.load(std::memory_order_acquire);
    return directory.segments[directory.indexOf(place)].load(std::memory_order_acquire);
  }
  /// Finds out where `later` will be, and the rows of `ids`, in turns: so memory always has some to fetch.
  void lookUp(std::span<const uint64_t> later, Probes& laterProbes, std::span<const uint64_t> ids,
              Probes& probes) const;

  RowSegment* newSegment(uint32_t depth);
  void freeSegment(RowSegment* segment);
  void collect();
  void retire(RowSegment* segment);
  bool mapSegments(uint64_t count, bool touched);
  bool split(uint64_t place);
  void doubleDirectory();
  void replace(uint64_t place, RowSegment* low, RowSegment* high);
  bool eraseFrom(uint64_t place, std::span<const RowEntry> entries, std::vector<uint32_t>& rows);
  /// The first hash that is not of the segment of `place` with this depth any more; nothing behind the last
  /// one.
  std::optional<uint64_t> hashBehind(uint64_t place, uint32_t depth) const;

  const HashRange range_;
  const uint32_t shift_;
  const std::shared_ptr<Epochs> epochs_;
  std::atomic<Directory*> directory_;
  std::unique_ptr<Directory> owned_;  // *directory_
  std::vector<MappedBlock> blocks_;   // of segments
  std::vector<std::byte*> free_;      // places for segments
  Retired<RowSegment*> retiredSegments_;
  Retired<std::unique_ptr<Directory>> retiredDirectories_;
  std::atomic<uint64_t> entries_{0}, segments_{0}, splits_{0}, bytes_{0};
};

template <class Use>
void RowIndex::pipeline(std::span<const uint64_t> ids, const Use& use) const {
  // Three stages, each a block behind the one before: lines are asked for, looked into, rows used.
  std::array<Probes, 3> stages;
  const uint64_t blocks = (ids.size() + kBlock - 1) / kBlock;
  const auto idsOf = [&](uint64_t block) {
    if (block >= blocks) return std::span<const uint64_t>();
    const uint64_t first = block * kBlock;
    return ids.subspan(first, std::min<uint64_t>(kBlock, ids.size() - first));
  };
  const auto rowsOf = [](const Probes& probes) {
    return std::span<const uint32_t>(probes.rows).first(probes.count);
  };
  for (uint64_t step = 0; blocks > 0 && step < blocks + 2; ++step) {
    Probes& asked = stages[step % 3];
    Probes& answered = stages[(step + 2) % 3];
    lookUp(idsOf(step), asked, idsOf(step - 1), answered);
    if (step >= 2) use((step - 2) * kBlock, rowsOf(stages[(step + 1) % 3]), rowsOf(answered));
  }
}

}  // namespace psd

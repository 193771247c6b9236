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
  uint64_t hash = 0;  ///< hash of the id
  uint64_t id = 0;
  uint32_t row = kNoRow;
  bool operator==(const RowEntry&) const = default;
};

/// Position of an iteration over a RowIndex. A value type.
struct RowCursor {
  uint64_t hash = 0;   ///< smaller hashes have been visited
  bool ended = false;  ///< no entries remain
};

/// Selects the entries that an iteration returns. Called once per entry.
using RowFilter = std::function<bool(const RowEntry&)>;

/// Maps ids of one hash range to row numbers: an extendible hash table.
///
/// A directory maps the upper bits of the hash, relative to the start of the range, to segments of 64 KiB. A
/// segment that reaches its maximum load is split in two by the next bit; no other segment changes, so the
/// slowest insert is one split. In directory order, segments are in hash order.
///
/// find(), findBatch(), pipeline() and next() take no lock; their callers hold a guard of `epochs` for the
/// call. All else is for one writer at a time; the counters may be read by any thread.
class RowIndex {
 public:
  /// 2^22 segments at half their load exceed the number of row numbers. Ids constructed so that their hashes
  /// agree in more upper bits than that cannot be inserted.
  static constexpr uint32_t kDepthMax = 22;
  static constexpr uint32_t kBlock = 32;  ///< ids per pipeline() block

  RowIndex(HashRange range, std::shared_ptr<Epochs> epochs);
  ~RowIndex();
  RowIndex(const RowIndex&) = delete;
  RowIndex& operator=(const RowIndex&) = delete;

  /// The row number of an id, or kNoRow.
  uint32_t find(uint64_t id) const;
  /// rows[i] = find(ids[i]). Returns the number of ids found.
  uint64_t findBatch(std::span<const uint64_t> ids, std::span<uint32_t> rows) const;
  /// Looks up all ids block by block and prefetches what later blocks need. Calls `use(first, rows, next)`
  /// for each block: `rows` are the row numbers, or kNoRow, of ids[first …], and `next` those of the next
  /// block, for prefetching.
  template <class Use>
  void pipeline(std::span<const uint64_t> ids, const Use& use) const;

  /// Inserts an id with row number `row`. Returns the id's row number, which differs from `row` if the id
  /// already existed; kNoRow if it cannot be inserted: see kDepthMax, or the system is out of memory.
  uint32_t insert(uint64_t id, uint32_t row);
  /// Erases those of the ids that exist, and appends their row numbers to `rows`; ids may repeat. False if
  /// the system is out of memory: then only the ids whose numbers are in `rows` are erased.
  bool erase(std::span<const uint64_t> ids, std::vector<uint32_t>& rows);
  /// Makes memory resident for all splits up to a total of `entries` entries. False if the system is out of
  /// memory.
  bool reserve(uint64_t entries);
  /// `out` = the entries of the next non-empty segment from `cursor` on, sorted by hash; advances `cursor`.
  /// Empty only at the end.
  void next(RowCursor& cursor, std::vector<RowEntry>& out) const;
  /// `out` = the entries of the next segment from `cursor` on, in any order; advances `cursor`. May be empty
  /// before the end.
  void nextUnsorted(RowCursor& cursor, std::vector<RowEntry>& out) const;
  /// `out` = the entries of the next segment from `cursor` on for which `keep` is true, sorted by hash;
  /// advances `cursor`. May be empty before the end.
  void next(RowCursor& cursor, std::vector<RowEntry>& out, const RowFilter& keep) const;

  uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }
  uint64_t segments() const { return segments_.load(std::memory_order_relaxed); }
  uint64_t splits() const { return splits_.load(std::memory_order_relaxed); }
  /// Memory of segments and directories, including those that guards may still access.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  /// Memory mapped for segments; for the writer only.
  uint64_t mappedBytes() const;

 private:
  using SegmentPointer = std::atomic<RowSegment*>;

  /// Immutable except for the segment pointers, which are stored with release.
  struct Directory {
    explicit Directory(uint32_t depth);
    const uint32_t depth;
    const std::unique_ptr<SegmentPointer[]> segments;  // 2^depth
    uint64_t size() const { return uint64_t{1} << depth; }
    uint64_t bytes() const { return size() * sizeof(SegmentPointer); }
    /// Directory index of a place in the range.
    uint64_t indexOf(uint64_t place) const { return place >> 1 >> (63 - depth); }
  };

  /// State of the lookup of a block of ids.
  struct Probes {
    std::array<uint64_t, kBlock> hashes;
    std::array<const RowSegment*, kBlock> segments;
    std::array<uint32_t, kBlock> rows;
    uint32_t count = 0;
  };

  /// The hash relative to the start of the range, shifted so that the range covers at least half of the
  /// 64-bit space: preserves the order of hashes.
  uint64_t placeOf(uint64_t hash) const { return (hash - range_.first) << shift_; }
  RowSegment* segmentAt(uint64_t place) const {
    const Directory& directory = *directory_.load(std::memory_order_acquire);
    return directory.segments[directory.indexOf(place)].load(std::memory_order_acquire);
  }
  /// Prefetches the lines of `later` and looks up `ids`, interleaved, so that memory fetches are always in
  /// flight.
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
  /// The first hash behind the segment of `place` with this depth; empty behind the last segment.
  std::optional<uint64_t> hashAfter(uint64_t place, uint32_t depth) const;

  const HashRange range_;
  const uint32_t shift_;
  const std::shared_ptr<Epochs> epochs_;
  std::atomic<Directory*> directory_;
  std::unique_ptr<Directory> owned_;  // *directory_
  std::vector<MappedBlock> blocks_;   // memory of the segments
  std::vector<std::byte*> free_;      // memory for new segments
  Retired<RowSegment*> retiredSegments_;
  Retired<std::unique_ptr<Directory>> retiredDirectories_;
  std::atomic<uint64_t> entries_{0}, segments_{0}, splits_{0}, bytes_{0};
};

template <class Use>
void RowIndex::pipeline(std::span<const uint64_t> ids, const Use& use) const {
  // Three stages, each one block behind the previous: prefetch the lines, look up, use the rows.
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

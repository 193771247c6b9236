#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "server/store/rows/row_layout.h"

namespace psd {

/// A cache line of entries (id, row number) of a RowIndex. Append-only: entries below `used` never change, so
/// readers need no lock. One writer.
struct alignas(64) RowLine {
  static constexpr uint32_t kEntries = 5;

  std::array<std::atomic<uint64_t>, kEntries> ids;
  std::array<std::atomic<uint32_t>, kEntries> rows;
  std::atomic<uint32_t> used;

  /// Result of a lookup in one line.
  struct Answer {
    uint32_t row;  ///< kNoRow: not in this line
    bool last;     ///< no later line needs to be searched
  };
  Answer find(uint64_t id) const {
    const uint32_t count = used.load(std::memory_order_acquire);
    uint32_t found = 0;  // branch-free: the matching entry is unpredictable
    for (uint32_t i = 0; i < kEntries; ++i) {
      found |= static_cast<uint32_t>(ids[i].load(std::memory_order_relaxed) == id) << i;
    }
    found &= (1u << count) - 1;
    if (found != 0) return {rows[std::countr_zero(found)].load(std::memory_order_relaxed), true};
    return {kNoRow, count < kEntries};
  }
  /// Returns false if the line is full.
  bool append(uint64_t id, uint32_t row) {
    const uint32_t count = used.load(std::memory_order_relaxed);
    if (count == kEntries) return false;
    ids[count].store(id, std::memory_order_relaxed);
    rows[count].store(row, std::memory_order_relaxed);
    used.store(count + 1, std::memory_order_release);
    return true;
  }
};
static_assert(sizeof(RowLine) == 64);

/// The entries of a part of the hash space. An entry is in the line selected by the low bits of its hash, or,
/// if that is full, in the next line with space. Never full; see kEntriesMax. Readers may call find(); the
/// rest is for the writer.
struct RowSegment {
  static constexpr uint32_t kLines = 1024;
  static constexpr uint32_t kCapacity = kLines * RowLine::kEntries;
  /// The segment is split beyond this load of 0.6, above which probing a second line costs more than the
  /// memory saved.
  static constexpr uint32_t kEntriesMax = kCapacity * 6 / 10;

  std::array<RowLine, kLines> lines;
  uint32_t depth = 0;    ///< number of leading place bits that all entries share
  uint32_t entries = 0;  ///< in all lines

  static uint32_t lineOf(uint64_t hash) { return hash % kLines; }

  uint32_t find(uint64_t hash, uint64_t id) const {
    for (uint32_t at = lineOf(hash);; at = (at + 1) % kLines) {
      const RowLine::Answer answer = lines[at].find(id);
      if (answer.last) return answer.row;
    }
  }
  /// Adds a new id. Requires fewer than kCapacity − 1 entries.
  void add(uint64_t hash, uint64_t id, uint32_t row) {
    uint32_t at = lineOf(hash);
    while (!lines[at].append(id, row)) at = (at + 1) % kLines;
    ++entries;
  }
  /// Calls visit(id, row) for each entry.
  template <class Visit>
  void forEach(const Visit& visit) const {
    for (const RowLine& line : lines) {
      const uint32_t used = line.used.load(std::memory_order_acquire);
      for (uint32_t i = 0; i < used; ++i) {
        visit(line.ids[i].load(std::memory_order_relaxed), line.rows[i].load(std::memory_order_relaxed));
      }
    }
  }
};

}  // namespace psd

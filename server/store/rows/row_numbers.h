#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "common/status/status.h"
#include "server/store/rows/epochs.h"
#include "server/store/rows/mapped_block.h"
#include "server/store/rows/pointer_list.h"
#include "server/store/rows/retired.h"
#include "server/store/rows/row_meta.h"
#include "server/store/rows/row_storage.h"

namespace psd {

/// Which row numbers of a RowStorage are in use, and a meta word for each. Opens the chunks of the storage as
/// they are needed, uses free rows first, and closes chunks that are empty.
///
/// meta() and setMeta() of rows in use and bytes() are for any thread; all else is for one writer at
/// a time.
class RowNumbers {
 public:
  /// Bytes of a row beside the storage's.
  static constexpr uint64_t kMetaBytes = sizeof(uint64_t);

  RowNumbers(RowStorage& storage, std::shared_ptr<Epochs> epochs);

  /// Makes sure that `count` calls of take() succeed. ErrorCode::overloaded when the storage has no room, or
  /// there are no more numbers.
  Status prepare(uint64_t count, bool touched = false);
  /// A row number that nobody uses, with meta word 0. After prepare().
  uint32_t take();
  /// Gives back a row number that nobody but the caller knows.
  void giveBack(uint32_t row);
  /// Gives back row numbers that were just taken out of the index, for use when no guard can know them.
  void retire(std::vector<uint32_t> rows);

  /// Makes what was retired free, as far as no guard can know it, and closes the chunks that are empty then.
  void reclaim();

  RowMeta meta(uint32_t row) const { return {word(row).load(std::memory_order_relaxed)}; }
  void setMeta(uint32_t row, RowMeta meta) { word(row).store(meta.word, std::memory_order_relaxed); }
  void prefetchMeta(uint32_t row) const { __builtin_prefetch(&word(row), 1); }

  /// Of rows, slots and meta words that are, or since their chunk was opened were, in use; of all rows of
  /// open chunks where these take their memory whole.
  uint64_t bytes() const { return touchedRows_.load(std::memory_order_relaxed) * bytesPerRow_; }
  /// How much bytes() grows by when `count` more rows are taken.
  uint64_t bytesFor(uint64_t count) const;

 private:
  using Word = std::atomic<uint64_t>;

  /// The rows of one chunk. Closed: no words.
  struct Chunk {
    std::optional<MappedBlock> words;
    std::vector<uint32_t> free;  // used before
    uint32_t fresh = 0;          // rows from here on were never used
    uint32_t used = 0;           // rows in use, or retired
  };

  Word& word(uint32_t row) const { return words_.get(row >> chunkBits_)[row & (rowsPerChunk_ - 1)]; }
  Status openChunk(bool touched);
  void closeChunk(uint32_t chunk);

  RowStorage& storage_;
  const std::shared_ptr<Epochs> epochs_;
  const uint32_t chunkBits_, rowsPerChunk_;
  const uint64_t bytesPerRow_;
  const bool wholeChunks_;
  PointerList<Word> words_;  // of each chunk; null: not open
  std::vector<Chunk> chunks_;
  std::set<uint32_t> roomy_;   // chunks that are open and not full: the first is filled first
  std::set<uint32_t> closed_;  // those of chunks_ that are not open
  uint64_t room_ = 0;          // rows that can be taken
  uint64_t freeRows_ = 0;      // of room_, used before
  Retired<std::vector<uint32_t>> retired_;
  std::atomic<uint64_t> touchedRows_{0};
};

}  // namespace psd

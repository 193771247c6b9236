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

/// Allocates row numbers of a RowStorage and keeps a meta word for each. Opens chunks of the storage as
/// needed, prefers free rows, and closes empty chunks.
///
/// meta() and setMeta() of rows in use and bytes() are for any thread; all else is for one writer at a time.
class RowNumbers {
 public:
  /// Bytes per row in addition to the storage's.
  static constexpr uint64_t kMetaBytes = sizeof(uint64_t);

  RowNumbers(RowStorage& storage, std::shared_ptr<Epochs> epochs);

  /// Ensures that `count` calls of take() succeed. ErrorCode::overloaded if the storage is out of memory
  /// or the row numbers are exhausted.
  Status prepare(uint64_t count, bool touched = false);
  /// Allocates a row number, with meta word 0. Requires prepare().
  uint32_t take();
  /// Frees a row number that only the caller knows.
  void releaseRow(uint32_t row);
  /// Frees row numbers that were just erased from the index, for reuse once no guard can know them.
  void retire(std::vector<uint32_t> rows);

  /// Frees retired row numbers that no guard can know any more, and closes the chunks that become empty.
  void reclaim();

  RowMeta meta(uint32_t row) const { return {word(row).load(std::memory_order_relaxed)}; }
  void setMeta(uint32_t row, RowMeta meta) { word(row).store(meta.word, std::memory_order_relaxed); }
  void prefetchMeta(uint32_t row) const { __builtin_prefetch(&word(row), 1); }

  /// Memory of the rows, slots and meta words that are in use or were since their chunk was opened; for a
  /// storage that takes whole chunks, of all rows of open chunks.
  uint64_t bytes() const { return touchedRows_.load(std::memory_order_relaxed) * bytesPerRow_; }
  /// Increase of bytes() if `count` more rows are allocated.
  uint64_t bytesFor(uint64_t count) const;

 private:
  using Word = std::atomic<uint64_t>;

  /// State of one chunk. Without `words` it is closed.
  struct Chunk {
    std::optional<MappedBlock> words;
    std::vector<uint32_t> free;  // freed row numbers
    uint32_t fresh = 0;          // rows from here on were never used
    uint32_t used = 0;           // number of rows in use or retired
  };

  Word& word(uint32_t row) const { return words_.get(row >> chunkBits_)[row & (rowsPerChunk_ - 1)]; }
  Status openChunk(bool touched);
  void closeChunk(uint32_t chunk);

  RowStorage& storage_;
  const std::shared_ptr<Epochs> epochs_;
  const uint32_t chunkBits_, rowsPerChunk_;
  const uint64_t bytesPerRow_;
  const bool wholeChunks_;
  PointerList<Word> words_;  // per chunk; null: closed
  std::vector<Chunk> chunks_;
  std::set<uint32_t> partlyFull_;  // open chunks that are not full; the first is filled first
  std::set<uint32_t> closed_;      // closed chunks of chunks_
  uint64_t available_ = 0;         // rows available to take()
  uint64_t freeRows_ = 0;          // of available_, freed rows
  Retired<std::vector<uint32_t>> retired_;
  std::atomic<uint64_t> touchedRows_{0};
};

}  // namespace psd

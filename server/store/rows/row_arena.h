#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "common/status/status.h"
#include "server/store/rows/mapped_block.h"
#include "server/store/rows/pointer_list.h"
#include "server/store/rows/row_layout.h"

namespace psd {

/// The chunks of a RowLayout in private host memory, on huge pages where the system provides them. An open
/// chunk does not move. open() and close() are for one writer at a time; the rest is for any thread, for rows
/// whose chunk is open.
class RowArena {
 public:
  explicit RowArena(const RowLayout& layout) : layout_(layout) {}

  /// Allocates a chunk. ErrorCode::overloaded, naming the bytes, if the system refuses. `touched`: make it
  /// resident now.
  Status open(uint32_t chunk, bool touched);
  void close(uint32_t chunk);

  /// Locates the rows of the chunks that are open when places() is called. A value type.
  struct Places {
    const std::atomic<float*>* chunks;
    uint32_t chunkBits, stride;

    /// Start of a row.
    float* row(uint32_t number) const { return chunk(number) + uint64_t{inChunk(number)} * stride; }
    float* chunk(uint32_t number) const {
      return chunks[number >> chunkBits].load(std::memory_order_relaxed);
    }
    uint32_t inChunk(uint32_t number) const { return number & ((uint32_t{1} << chunkBits) - 1); }
  };
  Places places() const { return {chunks_.all(), layout_.chunkBits(), layout_.stride()}; }

 private:
  const RowLayout& layout_;
  PointerList<float> chunks_;               // null: not open
  std::map<uint32_t, MappedBlock> blocks_;  // by number; open chunks only
};

}  // namespace psd

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

/// The chunks of a RowLayout in private host memory, on huge pages where the system gives them. A chunk stays
/// where it is as long as it is open. open() and close() are for one writer at a time, the rest for any
/// thread, for rows whose chunk is open.
class RowArena {
 public:
  explicit RowArena(const RowLayout& layout) : layout_(layout) {}

  /// ErrorCode::overloaded, naming the bytes, when the system refuses. `touched`: made resident at once.
  Status open(uint32_t chunk, bool touched);
  void close(uint32_t chunk);

  /// What row loops need to find rows that are there when it is asked for. A value type.
  struct Places {
    const std::atomic<float*>* chunks;
    uint32_t chunkBits, stride;

    /// The begin of a row.
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
  std::map<uint32_t, MappedBlock> blocks_;  // of open chunks
};

}  // namespace psd

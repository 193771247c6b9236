#include "server/store/rows/row_arena.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "server/store/arena_plan.h"

namespace psd {

RowArena::RowArena(const RowLayout& layout)
    : layout_(layout), chunks_(zeroedArray<std::atomic<float*>>(layout.chunksMax())) {}

Status RowArena::open(uint32_t chunk, bool touched) {
  const auto pages = chunk == 0 ? MappedBlock::Pages::smallAtFirst : MappedBlock::Pages::huge;
  auto block = MappedBlock::map(layout_.chunkBytes(), pages);
  if (!block) return notEnoughMemory("cpu", layout_.chunkBytes(), std::strerror(errno));
  if (touched) block->touch(layout_.chunkBytes());
  chunks_[chunk].store(reinterpret_cast<float*>(block->data()), std::memory_order_relaxed);
  blocks_.emplace(chunk, std::move(*block));
  return {};
}

void RowArena::close(uint32_t chunk) {
  chunks_[chunk].store(nullptr, std::memory_order_relaxed);
  blocks_.erase(chunk);
}

}  // namespace psd

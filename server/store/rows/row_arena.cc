#include "server/store/rows/row_arena.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "server/store/arena_plan.h"

namespace psd {

Status RowArena::open(uint32_t chunk, bool touched) {
  const auto pages = chunk == 0 ? MappedBlock::Pages::smallAtFirst : MappedBlock::Pages::huge;
  auto block = MappedBlock::map(layout_.chunkBytes(), pages);
  if (!block) return notEnoughMemory("cpu", layout_.chunkBytes(), std::strerror(errno));
  if (touched) block->touch(layout_.chunkBytes());
  chunks_.set(chunk, reinterpret_cast<float*>(block->data()));
  blocks_.emplace(chunk, std::move(*block));
  return {};
}

void RowArena::close(uint32_t chunk) {
  chunks_.set(chunk, nullptr);
  blocks_.erase(chunk);
}

}  // namespace psd

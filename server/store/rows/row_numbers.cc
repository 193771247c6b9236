#include "server/store/rows/row_numbers.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace psd {
RowNumbers::RowNumbers(RowStorage& storage, std::shared_ptr<Epochs> epochs)
    : storage_(storage),
      epochs_(std::move(epochs)),
      chunkBits_(storage.layout().chunkBits()),
      rowsPerChunk_(storage.layout().rowsPerChunk()),
      bytesPerRow_(storage.layout().rowBytes() + kMetaBytes),
      wholeChunks_(storage.takesWholeChunks()) {}

Status RowNumbers::prepare(uint64_t count, bool touched) {
  reclaim();
  Status status;
  while (available_ < count && status.ok()) status = openChunk(touched);
  if (status.ok() || !wholeChunks_) return status;
  for (uint32_t number = 0; number < chunks_.size(); ++number) {  // chunks opened in vain
    if (chunks_[number].words && chunks_[number].used == 0) closeChunk(number);
  }
  return status;
}

uint64_t RowNumbers::bytesFor(uint64_t count) const {
  if (!wholeChunks_) return count > freeRows_ ? (count - freeRows_) * bytesPerRow_ : 0;
  const uint64_t chunks = count > available_ ? (count - available_ + rowsPerChunk_ - 1) / rowsPerChunk_ : 0;
  return chunks * rowsPerChunk_ * bytesPerRow_;
}

Status RowNumbers::openChunk(bool touched) {
  auto number = static_cast<uint32_t>(chunks_.size());
  if (!closed_.empty()) number = *closed_.begin();
  if (number == storage_.layout().chunksMax()) {
    return {ErrorCode::overloaded, fmt::format("row numbers: all {} of the shard are in use", kNoRow)};
  }
  const uint64_t bytes = rowsPerChunk_ * sizeof(Word);
  auto words =
      MappedBlock::map(bytes, number == 0 ? MappedBlock::Pages::smallAtFirst : MappedBlock::Pages::huge);
  if (!words) return {ErrorCode::overloaded, fmt::format("rows: the system cannot allocate {} bytes", bytes)};
  if (touched) words->touch(bytes);
  PSD_RETURN_IF_ERROR(storage_.open(number, touched));
  if (number == chunks_.size()) chunks_.emplace_back();
  closed_.erase(number);
  words_.set(number, reinterpret_cast<Word*>(words->data()));
  chunks_[number].words = std::move(words);
  partlyFull_.insert(number);
  if (wholeChunks_) touchedRows_.fetch_add(rowsPerChunk_, std::memory_order_relaxed);
  // The last number of all is kNoRow.
  available_ += rowsPerChunk_ - (number + 1 == storage_.layout().chunksMax() ? 1 : 0);
  return {};
}

void RowNumbers::closeChunk(uint32_t number) {
  Chunk& chunk = chunks_[number];
  available_ -= rowsPerChunk_ - (number + 1 == storage_.layout().chunksMax() ? 1 : 0);
  freeRows_ -= chunk.free.size();
  touchedRows_.fetch_sub(wholeChunks_ ? rowsPerChunk_ : chunk.fresh, std::memory_order_relaxed);
  chunk = Chunk{};
  words_.set(number, nullptr);
  partlyFull_.erase(number);
  closed_.insert(number);
  storage_.close(number);
}

uint32_t RowNumbers::take() {
  const uint32_t number = *partlyFull_.begin();
  Chunk& chunk = chunks_[number];
  uint32_t row = (number << chunkBits_) + chunk.fresh;
  if (!chunk.free.empty()) {
    row = chunk.free.back();
    chunk.free.pop_back();
    --freeRows_;
  } else {
    ++chunk.fresh;
    if (!wholeChunks_) touchedRows_.fetch_add(1, std::memory_order_relaxed);
  }
  ++chunk.used;
  --available_;
  const bool lastNumber = row + 1 == kNoRow;
  if (chunk.free.empty() && (chunk.fresh == rowsPerChunk_ || lastNumber)) partlyFull_.erase(number);
  setMeta(row, {});
  return row;
}

void RowNumbers::releaseRow(uint32_t row) {
  const uint32_t number = row >> chunkBits_;
  Chunk& chunk = chunks_[number];
  chunk.free.push_back(row);
  --chunk.used;
  ++available_;
  ++freeRows_;
  partlyFull_.insert(number);
}

void RowNumbers::retire(std::vector<uint32_t> rows) {
  if (rows.empty()) return;
  retired_.add(*epochs_, std::move(rows));
  reclaim();
}

void RowNumbers::reclaim() {
  while (const auto rows = retired_.take(*epochs_)) {
    for (const uint32_t row : *rows) releaseRow(row);
    for (const uint32_t row : *rows) {
      const uint32_t number = row >> chunkBits_;
      if (chunks_[number].used == 0 && chunks_[number].words) closeChunk(number);
    }
  }
}

}  // namespace psd

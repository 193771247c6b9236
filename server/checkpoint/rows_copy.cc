#include "server/checkpoint/rows_copy.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace psd {
namespace {

/// Calls `work` with the lock held; returns how long the next waiter was blocked. Blocks.
template <class Work>
double underLock(ShardLock& lock, const Work& work) {
  kj::EventLoop loop;  // locks are awaited as promises; this thread may block
  kj::WaitScope scope(loop);
  const ShardLock::Guard guard = lock.acquire().wait(scope);
  work();
  return std::chrono::duration<double>(guard.nextWaiterDelay()).count();
}

}  // namespace

RowsCopy::RowsCopy(RowShard& shard, bool live, std::optional<BaseSnapshot> since,
                   std::vector<std::vector<uint64_t>> evicted)
    : shard_(shard),
      snapshot_(std::make_unique<RowSnapshot>(shard, live, since)),
      extras_(snapshot_->takeExtras()) {
  for (size_t i = 0; i < evicted.size(); i++) extras_[i].evicted = std::move(evicted[i]);
}

RowsCopy::~RowsCopy() {
  if (snapshot_) underLock(shard_.lock(), [this] { snapshot_ = nullptr; });
}

Result<bool> RowsCopy::writeSome(CheckpointWriter& writer, const ParameterStore& store,
                                 ManifestRowShard& entry, double& pauseSeconds) {
  Batch batch;
  bool more = true;
  while (more && batch.bytes < kFileBytes) {
    Result<bool> read = true;
    const double paused = underLock(shard_.lock(), [&] { read = this->read(batch, writer, store, entry); });
    pauseSeconds = std::max(pauseSeconds, paused);
    PSD_ASSIGN_OR_RETURN(more, read);
  }
  PSD_RETURN_IF_ERROR(flush(batch, writer, store, entry));
  return more;
}

Result<bool> RowsCopy::read(Batch& batch, CheckpointWriter& writer, const ParameterStore& store,
                            ManifestRowShard& entry) {
  do {
    RowPiece& piece = batch.pieces.emplace_back();
    const bool more = snapshot_->next(piece);
    PSD_RETURN_IF_ERROR(shard_.state());
    batch.bytes += piece.bytes();
    if (piece.empty()) batch.pieces.pop_back();
    if (!more) {
      snapshot_ = nullptr;
      return false;
    }
    const bool behind = snapshot_->heldBytes() > kHeldBytesMax;
    if (behind && batch.bytes >= kFileBytes) PSD_RETURN_IF_ERROR(flush(batch, writer, store, entry));
  } while (snapshot_->heldBytes() > kHeldBytesMax);
  return true;
}

Status RowsCopy::flush(Batch& batch, CheckpointWriter& writer, const ParameterStore& store,
                       ManifestRowShard& entry) {
  const std::vector<TableExtras> beside = std::exchange(extras_, {});
  if (batch.pieces.empty() && beside.empty()) return {};
  const Status written =
      writer.addRows(entry, store.model(), store.optimizerOf(shard_), batch.pieces, beside);
  batch = {};
  return written;
}

}  // namespace psd

#pragma once

// Plain C++ and no third-party header: .cu files include this.

#include <cstdint>
#include <memory>
#include <span>

#include "common/status/status.h"
#include "common/types/row_initial.h"
#include "server/optimizer/optimizer.h"
#include "server/store/rows/row_layout.h"
#include "server/store/rows/row_update.h"

namespace psd {

/// The values and optimizer slots of the rows of one table in one shard, by row number, on one device. Which
/// id has which row, and which rows are in use, is RowTable's.
///
/// Every call has finished its work when it returns, unless the device has failed: then state() says so from
/// then on, and the calls do nothing. open(), close() and create() are for the table's writer.
/// The others may be called by any thread at any time; on the same row they may race element by element
/// (Hogwild!), which is well defined here: an element is read and written whole. Whoever needs more takes the
/// shard's lock. A row is used only between the open() and close() of its chunk, and of some spans `rows`
/// only those that say so may hold kNoRow, whose places are passed over.
class RowStorage {
 public:
  using Rows = std::span<const uint32_t>;

  virtual ~RowStorage() = default;

  virtual const RowLayout& layout() const = 0;
  virtual const Optimizer& optimizer() const = 0;
  /// Takes over the numbers of `optimizer`, which has the slots of this storage. Only while nothing else is
  /// called.
  virtual void setOptimizer(const Optimizer& optimizer) = 0;
  /// How many rows a call should have: as many as the processor prefetches for, or enough for a device to be
  /// worth asking.
  virtual uint32_t batchRows() const = 0;
  /// Whether a chunk takes all its memory when it is opened, rather than row by row as rows are used.
  virtual bool takesWholeChunks() const { return false; }
  /// Ok, or why the device can do nothing any more: what was read since may be anything. Whoever hands values
  /// on, or counts an update, asks after it.
  virtual Status state() const { return {}; }

  /// Memory for the rows of a chunk. ErrorCode::overloaded, naming the bytes, when the device has no room.
  /// `touched` is a wish: the memory is to be resident at once, where the system gives it page by page.
  virtual Status open(uint32_t chunk, bool touched) = 0;
  /// Gives the memory of a chunk back.
  virtual void close(uint32_t chunk) = 0;

  /// out[i · dim …] = values of rows[i]; rows may be kNoRow. `next` is a hint: the rows, or kNoRow, of the
  /// call after this one.
  virtual void gather(Rows rows, std::span<float> out, Rows next) const = 0;
  /// Gives each row the initial values of its id and its slots theirs. Nobody else uses these rows.
  virtual void create(Rows rows, std::span<const uint64_t> ids, const RowInitial& initial) = 0;
  /// One optimizer step per row, in order, with gradients[i · dim …]; rows may be kNoRow, and repeat. `next`
  /// is that of gather().
  virtual void apply(Rows rows, std::span<const float> gradients, const RowUpdate& update, Rows next) = 0;

  /// out[i · width …] = a plane of rows[i], and the other way round; see RowLayout.
  virtual void readPlane(uint32_t plane, Rows rows, std::span<float> out) const = 0;
  virtual void writePlane(uint32_t plane, Rows rows, std::span<const float> values) = 0;
};

/// Rows in host memory: private, on huge pages where the system gives them. `dim` is 1 … RowLayout::kDimMax.
std::unique_ptr<RowStorage> makeCpuRowStorage(uint32_t dim, const Optimizer& optimizer);

}  // namespace psd

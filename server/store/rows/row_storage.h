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

/// The values and optimizer slots of the rows of one table in one shard, by row number, on one device.
/// RowTable maps ids to rows and tracks which rows are in use.
///
/// Every call has completed its work when it returns, unless the device has failed: then state() reports the
/// failure from then on, and calls do nothing. open(), close() and create() are for the table's writer. The
/// others may be called by any thread at any time; on the same row they may race element by element
/// (Hogwild!), which is well defined here: each element is read and written whole. A caller that needs more
/// takes the shard's lock. A row may be used only between open() and close() of its chunk. `rows` may contain
/// kNoRow only where documented; such entries are skipped.
class RowStorage {
 public:
  using Rows = std::span<const uint32_t>;

  virtual ~RowStorage() = default;

  virtual const RowLayout& layout() const = 0;
  virtual const Optimizer& optimizer() const = 0;
  /// Replaces the optimizer's hyperparameters; `optimizer` must have the same slots. No other call may be in
  /// progress.
  virtual void setOptimizer(const Optimizer& optimizer) = 0;
  /// Preferred number of rows per call: as many as the processor prefetches, or enough to make a device call
  /// worthwhile.
  virtual uint32_t batchRows() const = 0;
  /// Whether a chunk's memory is allocated completely when it is opened, rather than row by row on first use.
  virtual bool takesWholeChunks() const { return false; }
  /// Ok, or why the device has failed permanently; values read since may be arbitrary. Must be checked before
  /// values are passed on or an update is counted.
  virtual Status state() const { return {}; }

  /// Allocates memory for the rows of a chunk. ErrorCode::overloaded, naming the bytes, if the device has not
  /// enough memory. `touched` is a hint: make the memory resident now, where the system allocates it page by
  /// page.
  virtual Status open(uint32_t chunk, bool touched) = 0;
  /// Frees the memory of a chunk.
  virtual void close(uint32_t chunk) = 0;

  /// out[i · dim …] = values of rows[i]; rows may be kNoRow. `next` is a hint: the rows, or kNoRow, of the
  /// next call.
  virtual void gather(Rows rows, std::span<float> out, Rows next) const = 0;
  /// Initializes each row's values from its id, and its slots. No other thread may use these rows.
  virtual void create(Rows rows, std::span<const uint64_t> ids, const RowInitial& initial) = 0;
  /// One optimizer step per row, in order, with gradients[i · dim …]; rows may be kNoRow and may repeat.
  /// `next` is as in gather().
  virtual void apply(Rows rows, std::span<const float> gradients, const RowUpdate& update, Rows next) = 0;

  /// out[i · width …] = a plane of rows[i], and the inverse; see RowLayout.
  virtual void readPlane(uint32_t plane, Rows rows, std::span<float> out) const = 0;
  virtual void writePlane(uint32_t plane, Rows rows, std::span<const float> values) = 0;
};

/// Creates a storage in private host memory, on huge pages where the system provides them. `dim` is 1 …
/// RowLayout::kDimMax.
std::unique_ptr<RowStorage> makeCpuRowStorage(uint32_t dim, const Optimizer& optimizer);

}  // namespace psd

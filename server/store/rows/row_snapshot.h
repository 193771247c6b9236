#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/store/rows/row_shard.h"

namespace psd {

/// Rows of one table that are read together. Reused for each piece.
struct RowPiece {
  uint32_t table = 0;  ///< index into ModelSpec::tables
  std::vector<uint64_t> ids;
  std::vector<RowMeta> metas;
  std::vector<std::vector<float>> planes;  ///< by plane number of RowLayout: [rows, width]

  bool empty() const { return ids.empty(); }
  void clear(uint32_t planeCount);
  uint64_t bytes() const;
};

/// State of a table besides its rows, at a snapshot's version.
struct TableExtras {
  uint32_t table = 0;                ///< index into ModelSpec::tables
  std::vector<uint64_t> evicted;     ///< ids of rows evicted since the previous snapshot
  std::vector<uint64_t> counts;      ///< AdmissionFilter::saved()
  std::vector<uint64_t> countTerms;  ///< pushes and blockBits of the filter; empty if it has counted nothing
};

/// An earlier snapshot of the same row shard; an incremental snapshot skips rows that have not changed since.
struct BaseSnapshot {
  Version version;    ///< version of the earlier snapshot
  bool live = false;  ///< it was read during updates of the same version
};

/// The rows of a row shard at the time of construction, read piece by piece during updates under the shard's
/// lock: before an update changes or erases a row that has not been read, it saves a copy in the snapshot. A
/// `live` snapshot instead returns rows as they are when read, since updates take no lock (hogwild). The
/// pieces of a table are in the order of their ids' hashes. At most one per shard; all methods and the
/// destructor must be called with the shard's lock held.
class RowSnapshot final : private RowsObserver {
 public:
  /// `since`: only rows changed after it; empty: all rows.
  RowSnapshot(RowShard& shard, bool live, std::optional<BaseSnapshot> since = {});
  ~RowSnapshot() override;

  /// Reads the next rows: a few thousand of one table at most, possibly none. False: all have been read.
  bool next(RowPiece& piece);
  /// State of the tables besides their rows at construction, without evicted ids.
  std::vector<TableExtras> takeExtras() { return std::move(extras_); }
  /// Memory of the saved rows.
  uint64_t heldBytes() const { return heldBytes_; }
  /// Version of the rows.
  Version version() const { return version_; }

 private:
  /// A saved row.
  struct SavedRow {
    uint64_t id = 0;
    RowMeta meta;
    std::vector<float> planes;  ///< concatenated
  };
  /// The saved rows of a table that have not been read, by the hash of their ids.
  using SavedRows = std::map<uint64_t, SavedRow>;

  void beforeChange(const RowIds& rows) override;
  /// Whether a row with this metadata belongs to the snapshot.
  bool changed(RowMeta meta) const {
    return !since_ || meta.version() > since_->version.value ||
           (since_->live && meta.version() == since_->version.value);
  }
  /// Whether the row has neither been read nor changed since the snapshot.
  bool untouched(size_t table, uint64_t hash, RowMeta meta) const;
  /// Saves those of the rows that are untouched. `numbers`: their row numbers, or kNoRow.
  void saveRows(size_t table, std::span<const uint64_t> ids, std::span<const uint32_t> numbers);
  void append(RowPiece& piece, const RowTable& table, const std::vector<RowEntry>& entries) const;
  void append(RowPiece& piece, const RowTable& table, const SavedRow& row);

  RowShard& shard_;
  const bool live_;
  const Version version_;
  const std::optional<BaseSnapshot> since_;
  std::vector<TableExtras> extras_;
  std::vector<SavedRows> saved_;  // per table of the shard
  uint64_t heldBytes_ = 0;
  size_t table_ = 0;  // index in the shard of the table being read
  RowCursor cursor_;
};

}  // namespace psd

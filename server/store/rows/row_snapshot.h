#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "server/store/rows/row_shard.h"

namespace psd {

/// Rows of one table that were read together. Used again from piece to piece.
struct RowPiece {
  uint32_t table = 0;  ///< index into ModelSpec::tables
  std::vector<uint64_t> ids;
  std::vector<RowMeta> metas;
  std::vector<std::vector<float>> planes;  ///< as RowLayout names them: [rows, width]

  bool empty() const { return ids.empty(); }
  void clear(uint32_t planeCount);
  uint64_t bytes() const;
};

/// What a table has beside its rows, at a snapshot's version.
struct BesideRows {
  uint32_t table = 0;             ///< index into ModelSpec::tables
  std::vector<uint64_t> evicted;  ///< ids of rows that were taken out since the snapshot before
  std::vector<uint64_t> counts;   ///< AdmissionFilter::saved()
  std::vector<uint64_t>
      countTerms;  ///< pushes and blockBits of the filter; empty where it has counted nothing
};

/// What a snapshot leaves out: rows that did not change since an earlier one of the same row shard.
struct EarlierRows {
  Version version;    ///< of the earlier one
  bool live = false;  ///< it was read while updates of the same version went on
};

/// The rows of a row shard as they were when it was made, read piece by piece while updates under the shard's
/// lock go on: an update first puts aside what it is about to change or take out and nobody has read. A
/// `live` one gives the rows as they are when they are read, since updates take no lock (hogwild). The pieces
/// of a table come in the order of their ids' hashes. One at a time per shard; its maker's, and every method
/// is called with the shard's lock held, the destructor too.
class RowSnapshot final : private RowsObserver {
 public:
  /// `since`: only rows that changed after these; nothing: all.
  RowSnapshot(RowShard& shard, bool live, std::optional<EarlierRows> since = {});
  ~RowSnapshot() override;

  /// The next rows, some thousand of one table at most, perhaps none. False: all have been read.
  bool next(RowPiece& piece);
  /// What the tables had beside their rows when it was made, but for what was evicted.
  std::vector<BesideRows> takeBeside() { return std::move(beside_); }
  /// Memory of what was put aside.
  uint64_t heldBytes() const { return heldBytes_; }
  /// The version that the rows are of.
  Version version() const { return version_; }

 private:
  /// A row as it was.
  struct Before {
    uint64_t id = 0;
    RowMeta meta;
    std::vector<float> planes;  ///< one after the other
  };
  /// The rows put aside of a table that have not been read, by their ids' hashes.
  using Aside = std::map<uint64_t, Before>;

  void beforeChange(const RowIds& rows) override;
  /// Whether a row that is as it was is one of those that are read.
  bool changed(RowMeta meta) const {
    return !since_ || meta.version() > since_->version.value ||
           (since_->live && meta.version() == since_->version.value);
  }
  /// Whether the row is still to be read and is as it was.
  bool untouched(size_t table, uint64_t hash, RowMeta meta) const;
  /// Puts those of the rows aside that are untouched. `numbers`: theirs, or kNoRow.
  void putAside(size_t table, std::span<const uint64_t> ids, std::span<const uint32_t> numbers);
  void append(RowPiece& piece, const RowTable& table, const std::vector<RowEntry>& entries) const;
  void append(RowPiece& piece, const RowTable& table, const Before& row);

  RowShard& shard_;
  const bool live_;
  const Version version_;
  const std::optional<EarlierRows> since_;
  std::vector<BesideRows> beside_;
  std::vector<Aside> aside_;  // by table of the shard
  uint64_t heldBytes_ = 0;
  size_t table_ = 0;  // of the shard, that is being read
  RowCursor cursor_;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace psd {

/// A slice of rows may take as many bytes as a slice of values may: an id, and a run of ids of one table,
/// count as so many float32 values.
inline constexpr uint64_t kRowIdFloats = 2;
inline constexpr uint64_t kRowRunFloats = 2;

/// So many ids, one after the other in a list of ids, are of one table. A value type.
struct RowRun {
  uint32_t table = 0;  ///< index into ModelSpec::tables
  uint32_t count = 0;  ///< ids; never 0
  bool operator==(const RowRun&) const = default;
};

/// Rows of several tables: `runs` says whose ids `ids` are, run after run. A view of memory that somebody
/// else keeps; a value type.
struct RowIds {
  std::span<const RowRun> runs;
  std::span<const uint64_t> ids;

  bool empty() const { return ids.empty(); }
};

/// RowIds that own their runs, of which there are few. The ids are somebody else's.
struct OwnedRowRuns {
  std::vector<RowRun> runs;
  std::span<const uint64_t> ids;

  RowIds view() const { return {runs, ids}; }
};

}  // namespace psd

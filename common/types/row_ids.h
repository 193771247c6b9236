#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace psd {

/// Sizes of an id, and of a run of ids of one table, in float32 values: a slice of rows has the same byte
/// limit as a slice of values.
inline constexpr uint64_t kRowIdFloats = 2;
inline constexpr uint64_t kRowRunFloats = 2;

/// `count` consecutive ids in a list of ids belong to one table. A value type.
struct RowRun {
  uint32_t table = 0;  ///< index into ModelSpec::tables
  uint32_t count = 0;  ///< ids; never 0
  bool operator==(const RowRun&) const = default;
};

/// Rows of several tables: `runs` assigns the ids in `ids` to tables, run after run. A view of memory that it
/// does not own; a value type.
struct RowIds {
  std::span<const RowRun> runs;
  std::span<const uint64_t> ids;

  bool empty() const { return ids.empty(); }
};

/// RowIds that own their few runs, but not the ids.
struct OwnedRowRuns {
  std::vector<RowRun> runs;
  std::span<const uint64_t> ids;

  RowIds view() const { return {runs, ids}; }
};

}  // namespace psd

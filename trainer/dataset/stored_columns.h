#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// A column as it is stored: all rows one after the other, little endian.
struct StoredColumn {
  ColumnSpec column;  ///< of one row
  uint64_t rows = 0;
  std::span<const std::byte> bytes;
};

/// Columns of as many rows each, at least one. A value type; copies share memory.
struct StoredColumns {
  uint64_t rows = 0;
  std::vector<StoredColumn> columns;
  std::map<std::string, std::string> unread;  ///< why other columns are not among them, with the file's name
  std::vector<std::shared_ptr<const void>> memory;  ///< that the columns are views of
};

/// What a file's own name for an element type is.
struct StoredType {
  std::string_view name;
  ElementType type;
};

/// Appends a column of `extents`, rows first; what stands for it is `what`, as "a.st: tensor 'x'". One of a
/// type that is not read (nothing), without rows or with too many is `unread` from then on. The error: the
/// file does not hold what type and extents say.
Status addColumn(StoredColumns& columns, const std::string& name, std::optional<ElementType> type,
                 const std::string& typeName, const std::vector<uint64_t>& extents,
                 std::span<const std::byte> bytes, const std::string& what);

/// Leaves the columns that have as many rows as most have, of as many columns the more rows; the others are
/// `unread` from then on. The error: there are none.
Status finishColumns(StoredColumns& columns);

/// Each tensor is a column, its first dimension the rows. F32, F64, I32, I64, U8, BOOL. Errors name the file
/// and the tensor.
Result<StoredColumns> readSafetensorsColumns(const std::string& path);
/// Files of numpy.save(), each a column of its name without ".npy", its first dimension the rows. Errors name
/// the file.
Result<StoredColumns> readNpyColumns(const std::vector<std::string>& paths);
/// Lines of fields with commas between them, below a line of names. A column is i64 where each of its
/// numbers is whole, else f32; or what stands behind its name, as in "label i64,weight f32". One that has
/// something else than finite numbers is unread. Errors name file, line and column of the first wrong byte.
Result<StoredColumns> readCsvColumns(const std::string& path);

}  // namespace psd

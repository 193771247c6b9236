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

/// A column as stored: contiguous rows, little-endian.
struct StoredColumn {
  ColumnSpec column;  ///< the type and shape of one row
  uint64_t rows = 0;
  std::span<const std::byte> bytes;
};

/// Columns with the same number of rows, at least one. A value type; copies share memory.
struct StoredColumns {
  uint64_t rows = 0;
  std::vector<StoredColumn> columns;
  std::map<std::string, std::string> skipped;  ///< columns that were skipped, and why; reasons name the file
  std::vector<std::shared_ptr<const void>> memory;  ///< keeps the columns' bytes alive
};

/// A file format's name of an element type.
struct StoredType {
  std::string_view name;
  ElementType type;
};

/// Appends a column of `extents`, rows first; errors call it `what`, as "a.st: tensor 'x'". A column of an
/// unsupported type (nullopt), without rows or with too many rows becomes `skipped`. The error: the size of
/// `bytes` does not match type and extents.
Status addColumn(StoredColumns& columns, const std::string& name, std::optional<ElementType> type,
                 const std::string& typeName, const std::vector<uint64_t>& extents,
                 std::span<const std::byte> bytes, const std::string& what);

/// Keeps the columns with the most common number of rows (on a tie, the larger number); the others become
/// `skipped`. The error: no column is left.
Status finishColumns(StoredColumns& columns);

/// Reads each tensor as a column, its first dimension being the rows. F32, F64, I32, I64, U8, BOOL. Errors
/// name the file and the tensor.
Result<StoredColumns> readSafetensorsColumns(const std::string& path);
/// Reads files of numpy.save(), each a column named like the file without ".npy", its first dimension being
/// the rows. Errors name the file.
Result<StoredColumns> readNpyColumns(const std::vector<std::string>& paths);
/// Reads comma-separated lines below a header line. A column is i64 if all its numbers are whole, else f32,
/// unless the header declares a type, as in "label i64,weight f32". A column with anything but finite numbers
/// is skipped. Errors name file, line and column of the first wrong byte.
Result<StoredColumns> readCsvColumns(const std::string& path);

}  // namespace psd

#pragma once

#include <cstddef>
#include <cstdint>
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
  std::span<const std::byte> bytes;
};

/// Columns of as many rows each. A value type; copies share memory.
struct StoredColumns {
  uint64_t rows = 0;
  std::vector<StoredColumn> columns;
  std::vector<std::shared_ptr<const void>> memory;  ///< that the columns are views of
};

/// What a file's own name for an element type is.
struct StoredType {
  std::string_view name;
  ElementType type;
};

/// Appends a column of `extents`, rows first; what stands for it is `what`, as "tensor 'x'". The error,
/// without the file's name, says what is wrong with the type (nothing: none that is read), the extents or the
/// bytes.
Status addColumn(StoredColumns& columns, const std::string& name, std::optional<ElementType> type,
                 const std::string& typeName, const std::vector<uint64_t>& extents,
                 std::span<const std::byte> bytes, const std::string& what);

/// Each tensor is a column, its first dimension the rows. F32, F64, I32, I64, U8, BOOL. Errors name the file
/// and the tensor.
Result<StoredColumns> readSafetensorsColumns(const std::string& path);
/// Files of numpy.save(), each a column of its name without ".npy", its first dimension the rows. Errors name
/// the file.
Result<StoredColumns> readNpyColumns(const std::vector<std::string>& paths);
/// Lines of numbers with commas between them, below a line of names. A column is i64 where each of its
/// numbers is whole, else f32; or what stands behind its name, as in "label i64,weight f32". Errors name
/// file, line and column of the first wrong byte.
Result<StoredColumns> readCsvColumns(const std::string& path);

}  // namespace psd

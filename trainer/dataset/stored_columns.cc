#include "trainer/dataset/stored_columns.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {

Status addColumn(StoredColumns& columns, const std::string& name, std::optional<ElementType> type,
                 const std::string& typeName, const std::vector<uint64_t>& extents,
                 std::span<const std::byte> bytes, const std::string& what) {
  const auto bad = [&](const std::string& why) { return Error{ErrorCode::io, what + " " + why}; };
  if (!type) {
    return bad("is of " + printable(typeName, 40) + "; expected f32, f64, i32, i64, u8 or bool");
  }
  if (extents.empty() || std::ranges::count(extents, uint64_t{0}) != 0) {
    return bad("has no rows; expected its first dimension to be the rows, at least one");
  }
  uint64_t size = elementBytes(*type);
  for (const uint64_t extent : extents) {
    if (extent > bytes.size() / size) return bad("is larger than the file");
    size *= extent;
  }
  if (size != bytes.size()) {
    return bad(fmt::format("has {} bytes; expected {} by its type and shape", bytes.size(), size));
  }
  if (extents[0] > std::numeric_limits<uint32_t>::max()) {
    return bad(
        fmt::format("has {} rows; expected at most {}", extents[0], std::numeric_limits<uint32_t>::max()));
  }
  if (!columns.columns.empty() && extents[0] != columns.rows) {
    return bad(fmt::format("has {} rows, but column '{}' has {}; expected as many in all", extents[0],
                           columns.columns.front().column.name, columns.rows));
  }
  columns.rows = extents[0];
  columns.columns.push_back({{name, *type, {extents.begin() + 1, extents.end()}}, bytes});
  return {};
}

}  // namespace psd

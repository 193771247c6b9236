#include "trainer/dataset/stored_columns.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {

Status addColumn(StoredColumns& columns, const std::string& name, std::optional<ElementType> type,
                 const std::string& typeName, const std::vector<uint64_t>& extents,
                 std::span<const std::byte> bytes, const std::string& what) {
  const auto skip = [&](const std::string& why) -> Status {
    columns.skipped[name] = what + " " + why;
    return {};
  };
  if (!type) {
    return skip("is of " + printable(typeName, 40) + "; expected f32, f64, i32, i64, u8 or bool");
  }
  if (extents.empty() || std::ranges::count(extents, uint64_t{0}) != 0) {
    return skip("has no rows; expected its first dimension to be the rows, at least one");
  }
  const auto damaged = [&](const std::string& why) { return Error{ErrorCode::io, what + " " + why}; };
  uint64_t size = elementBytes(*type);
  for (const uint64_t extent : extents) {
    if (extent > bytes.size() / size) return damaged("is larger than the file");
    size *= extent;
  }
  if (size != bytes.size()) {
    return damaged(fmt::format("has {} bytes; expected {} by its type and shape", bytes.size(), size));
  }
  if (extents[0] > std::numeric_limits<uint32_t>::max()) {
    return skip(
        fmt::format("has {} rows; expected at most {}", extents[0], std::numeric_limits<uint32_t>::max()));
  }
  columns.columns.push_back({{name, *type, {extents.begin() + 1, extents.end()}}, extents[0], bytes});
  return {};
}

Status finishColumns(StoredColumns& columns) {
  std::map<uint64_t, size_t> counts;
  for (const StoredColumn& each : columns.columns) ++counts[each.rows];
  const auto most = std::ranges::max_element(
      counts, {}, [](const auto& each) { return std::pair(each.second, each.first); });
  if (most == counts.end()) {
    return {ErrorCode::io, columns.skipped.empty() ? "no column" : columns.skipped.begin()->second};
  }
  columns.rows = most->first;
  std::erase_if(columns.columns, [&](const StoredColumn& each) {
    if (each.rows == columns.rows) return false;
    columns.skipped[each.column.name] =
        fmt::format("it has {} rows, but most columns have {}", each.rows, columns.rows);
    return true;
  });
  return {};
}

}  // namespace psd

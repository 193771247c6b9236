#include "trainer/task/column_text.h"

#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/text/number.h"
#include "common/text/split.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr std::string_view kBelow = " below ";
constexpr size_t kExtentsMax = 16;

std::optional<ElementType> elementTypeOf(std::string_view name) {
  for (const ElementType type :
       {ElementType::f32, ElementType::f64, ElementType::i32, ElementType::i64, ElementType::u8}) {
    if (elementTypeName(type) == name) return type;
  }
  return {};
}

bool isWhole(ElementType type) { return type != ElementType::f32 && type != ElementType::f64; }

/// A number from 1 to `max`; nullopt for anything else.
std::optional<uint64_t> countOf(std::string_view text, uint64_t max) {
  const auto value = toNumber<uint64_t>(text);
  return value && *value != 0 && *value <= max ? value : std::nullopt;
}

/// "1,28,28", "any,3"
std::optional<std::vector<uint64_t>> extentsOf(std::string_view text) {
  std::vector<uint64_t> extents;
  for (const std::string& extent : splitAtCommas(text)) {
    const auto count = countOf(extent, std::numeric_limits<uint32_t>::max());
    if (extent != "any" && !count) return {};
    extents.push_back(count.value_or(ColumnSpec::kAny));
  }
  if (extents.size() > kExtentsMax) return {};
  return extents;
}

std::optional<ColumnSpec> parse(std::string_view text) {
  ColumnSpec column;
  if (const size_t below = text.find(kBelow); below != std::string_view::npos) {
    const auto bound = countOf(text.substr(below + kBelow.size()), std::numeric_limits<int64_t>::max());
    if (!bound) return {};
    column.bound = *bound;
    text = text.substr(0, below);
  }
  if (const size_t bracket = text.find('['); bracket != std::string_view::npos) {
    if (!text.ends_with(']')) return {};
    auto extents = extentsOf(text.substr(bracket + 1, text.size() - bracket - 2));
    if (!extents) return {};
    column.shape = *std::move(extents);
    text = text.substr(0, bracket);
  }
  const auto type = elementTypeOf(text);
  if (!type || (column.bound != 0 && !isWhole(*type))) return {};
  column.type = *type;
  return column;
}

}  // namespace

Result<ColumnSpec> readColumn(std::string name, std::string_view text) {
  std::optional<ColumnSpec> column = parse(text);
  if (!column) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("'{}' is not a column type; expected f32, f64, i32, i64 or u8, then a sample's "
                             "shape as [3,any], then of whole numbers \" below 10\"",
                             printable(text, 60))};
  }
  column->name = std::move(name);
  return *std::move(column);
}

}  // namespace psd

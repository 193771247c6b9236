#include "common/types/named_value.h"

#include <cctype>
#include <set>
#include <string_view>

#include "common/text/text.h"

namespace psd {
namespace {

bool isValidReportName(std::string_view name) {
  if (name.empty() || name.size() > kReportedNameBytesMax) return false;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 &&
        std::string_view("._-/").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

}  // namespace

Status validateReport(std::span<const NamedValue> values) {
  if (values.size() > kReportedValuesMax) {
    return {ErrorCode::invalidArgument, "a report has at most " + std::to_string(kReportedValuesMax) +
                                            " values, not " + std::to_string(values.size())};
  }
  std::set<std::string_view> names;
  for (const NamedValue& each : values) {
    const std::string shown = printable(each.name, kReportedNameBytesMax);
    if (!isValidReportName(each.name)) {
      return {ErrorCode::invalidArgument,
              "'" + shown + "' is not a valid name in a report: a name has 1 to " +
                  std::to_string(kReportedNameBytesMax) + " letters, digits, or . _ - /"};
    }
    if (!names.insert(each.name).second) {
      return {ErrorCode::invalidArgument, "a report has '" + shown + "' twice"};
    }
  }
  return {};
}

}  // namespace psd

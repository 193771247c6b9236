#include "server/status/table_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

constexpr size_t kTableLineBytesMax = 8 << 10;  // bounds untrusted text

std::vector<size_t> widthsOf(const std::vector<TextRow>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const TextRow& row : rows) {
    for (size_t i = 0; i < row.size(); i++) widths[i] = std::max(widths[i], row[i].size());
  }
  return widths;
}

}  // namespace

std::string labelledLine(std::string_view label, std::string_view text) {
  return fmt::format("{:<10} {}\n", label, oneLine(text, kTableLineBytesMax));
}

std::string countText(uint64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string rateText(double perSecond) {
  const bool whole = perSecond >= 100 && perSecond < 1e15;
  return whole ? fmt::format("{:.0f}", perSecond) : fmt::format("{:.3g}", perSecond);
}

std::string ranksText(const std::vector<uint32_t>& ranks) {
  return joined(ranks, ", ", [](uint32_t rank) { return fmt::to_string(rank); });
}

void eraseColumn(std::vector<TextRow>& rows, std::string_view heading) {
  const auto at = std::ranges::find(rows.front(), heading) - rows.front().begin();
  if (static_cast<size_t>(at) == rows.front().size()) return;
  for (TextRow& row : rows) row.erase(row.begin() + at);
}

size_t rowWidth(const std::vector<TextRow>& rows) {
  size_t width = 0;
  for (const size_t each : widthsOf(rows)) width += each + 2;
  return width;
}

std::string alignedRows(const std::vector<TextRow>& rows) {
  const std::vector<size_t> widths = widthsOf(rows);
  std::string out;
  for (const TextRow& row : rows) {
    std::string text = "  ";
    for (size_t i = 0; i < row.size(); i++) {
      text += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    out += oneLine(text, kTableLineBytesMax) + "\n";
  }
  return out;
}

}  // namespace psd

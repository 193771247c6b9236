#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

using TextRow = std::vector<std::string>;

/// "model      none yet": a line with a padded label.
std::string labelledLine(std::string_view label, std::string_view text);

/// "1 tensor", "2 tensors"
std::string countText(uint64_t count, std::string_view what);

/// "18230", "0.25": a rate per second.
std::string rateText(double perSecond);

/// "0, 2": a list of ranks.
std::string ranksText(const std::vector<uint32_t>& ranks);

/// Removes the column with that heading, if there is one.
void eraseColumn(std::vector<TextRow>& rows, std::string_view heading);

/// The width of the lines of alignedRows().
size_t rowWidth(const std::vector<TextRow>& rows);

/// Aligned rows of cells; the first row is the heading, and all columns but the first are right-aligned.
std::string alignedRows(const std::vector<TextRow>& rows);

}  // namespace psd

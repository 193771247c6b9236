#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace psd {

using TextRow = std::vector<std::string>;

/// "model      none yet", with the label that each line begins with.
std::string labelledLine(std::string_view label, std::string_view text);

/// "18230", "0.25": so many per second.
std::string rateText(double perSecond);

/// "0, 2": ranks, one after the other.
std::string ranksText(const std::vector<uint32_t>& ranks);

/// Rows of cells under a heading, the first row; columns aligned, all but the first to the right.
std::string alignedRows(const std::vector<TextRow>& rows);

}  // namespace psd

#pragma once

#include <string_view>

namespace psd {

/// Writes all of it to the file. False: errno says why.
bool writeWhole(int file, std::string_view text);

}  // namespace psd

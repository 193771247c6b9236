#pragma once

#include <span>
#include <string_view>

namespace psd {

/// A file of the page, which is part of the program. Immutable.
struct Asset {
  std::string_view path;  ///< of its URL
  std::string_view type;  ///< its Content-Type
  std::string_view content;
};

/// The files of server/http/page, and Chart.js.
std::span<const Asset> pageAssets();

}  // namespace psd

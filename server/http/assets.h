#pragma once

#include <span>
#include <string_view>

namespace psd {

/// A file of the page, embedded in the program. Immutable.
struct Asset {
  std::string_view path;  ///< URL path
  std::string_view type;  ///< Content-Type
  std::string_view content;
};

/// The files of server/http/page and Chart.js.
std::span<const Asset> pageAssets();

}  // namespace psd

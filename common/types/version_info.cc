#include "common/types/version_info.h"

#include <algorithm>
#include <iterator>

namespace psd {
namespace {

constexpr std::string_view kMoments[] = {"live", "snapshot", "round", "step"};

}  // namespace

std::string_view momentName(VersionMoment moment) { return kMoments[static_cast<size_t>(moment)]; }

VersionMoment momentNamed(std::string_view name) {
  const auto* const named = std::ranges::find(kMoments, name);
  return named == std::end(kMoments) ? VersionMoment::live : static_cast<VersionMoment>(named - kMoments);
}

}  // namespace psd

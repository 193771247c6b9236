#include "common/types/version_info.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "common/text/quantity.h"

namespace psd {
namespace {

constexpr std::string_view kMoments[] = {"live", "snapshot", "round", "step"};

}  // namespace

std::string_view momentName(VersionMoment moment) { return kMoments[static_cast<size_t>(moment)]; }

VersionMoment momentNamed(std::string_view name) {
  const auto* const named = std::ranges::find(kMoments, name);
  return named == std::end(kMoments) ? VersionMoment::live : static_cast<VersionMoment>(named - kMoments);
}

Status FreshnessBound::check(const VersionFreshness& freshness, const std::string& server) const {
  const uint64_t behind = freshness.versionsBehind();
  if ((!versions || behind <= *versions) && (!time || freshness.age <= *time)) return {};
  const std::string newer = behind == UINT64_MAX
                                ? "an unknown number of versions is"
                                : fmt::format("{} version{}", behind, behind == 1 ? " is" : "s are");
  return {ErrorCode::stale,
          fmt::format("{}: further behind its source than this reader accepts: {} newer, last complete {}",
                      server, newer,
                      freshness.age < VersionFreshness::kAgeUnknown ? durationText(freshness.age) + " ago"
                                                                    : "at an unknown time")};
}

}  // namespace psd

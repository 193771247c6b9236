#pragma once

#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// The settings of one of several daemons, and its human-readable name.
struct NamedRules {
  std::string_view name;
  std::string_view text;  ///< one line "policy.type: \"sync\"" per key, in the same order for all daemons
};

/// ErrorCode::invalidArgument, with the first line that differs, if two daemons that serve a model together
/// have different settings.
Status checkSameRules(const NamedRules& one, const NamedRules& other);

}  // namespace psd

#pragma once

#include <string>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// What a daemon of several goes by, and what it is called, for people.
struct RulesOf {
  std::string_view name;
  std::string_view text;  ///< a line "policy.type: \"sync\"" for each key, in the order of all daemons
};

/// ErrorCode::invalidArgument, with the first line that differs, where two daemons that are to serve a model
/// together go by different rules.
Status checkSameRules(const RulesOf& one, const RulesOf& other);

}  // namespace psd

#include "server/auth/role.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/text/text.h"

namespace psd {

Result<Role> parseRole(std::string_view name) {
  const auto found = std::ranges::find(kRoleNames, name);
  if (found != kRoleNames.end()) return static_cast<Role>(found - kRoleNames.begin());
  const std::vector<std::string_view> names(kRoleNames.begin(), kRoleNames.end());
  const std::string_view meant = nearest(name, names);
  return Error{ErrorCode::invalidArgument,
               "'" + printable(name) + "' is not a role; expected " + joined(names, ", ") +
                   (meant.empty() ? "" : "; did you mean '" + std::string(meant) + "'?")};
}

}  // namespace psd

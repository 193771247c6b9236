#pragma once

#include <array>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Permissions of a caller; each role includes the previous ones.
enum class Role {
  reader,   ///< pull, observe, query the status
  trainer,  ///< also join and push
  admin,    ///< also reload and stop
};

inline constexpr std::array<std::string_view, 3> kRoleNames = {"reader", "trainer", "admin"};

inline std::string_view roleName(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

/// The error lists the roles and suggests the closest.
Result<Role> parseRole(std::string_view name);

inline bool includes(Role role, Role needed) { return role >= needed; }

}  // namespace psd

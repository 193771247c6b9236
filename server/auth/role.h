#pragma once

#include <array>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// What a caller may do; each role includes those before it.
enum class Role {
  reader,   ///< pull, observe, ask for the status
  trainer,  ///< also join and push
  admin,    ///< also reload and stop
};

inline constexpr std::array<std::string_view, 3> kRoleNames = {"reader", "trainer", "admin"};

inline std::string_view roleName(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

/// The error lists the roles, and suggests the nearest.
Result<Role> parseRole(std::string_view name);

inline bool includes(Role role, Role needed) { return role >= needed; }

}  // namespace psd

#pragma once

#include <array>
#include <string_view>

#include "common/status/status.h"

namespace psd {

/// Permissions of a caller; each role includes reader, and admin all.
enum class Role {
  reader,     ///< pull, observe, query the status
  publisher,  ///< publish versions
  trainer,    ///< join and push
  admin,      ///< reload and stop
};

inline constexpr std::array<std::string_view, 4> kRoleNames = {"reader", "publisher", "trainer", "admin"};

inline std::string_view roleName(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

/// The error lists the roles and suggests the closest.
Result<Role> parseRole(std::string_view name);

inline bool includes(Role role, Role needed) {
  return role == needed || role == Role::admin || needed == Role::reader;
}

}  // namespace psd

#include "server/auth/auth_config.h"

#include "common/config/globs.h"

namespace psd {
namespace {

constexpr Role kLocal = Role::admin;

Role readRole(ObjectReader& in, std::string_view key, Role fallback) {
  // in.choice() validated the name.
  return parseRole(in.choice(key, roleName(fallback), {kRoleNames.begin(), kRoleNames.end()})).value();
}

}  // namespace

AuthConfig readAuth(ObjectReader in) {
  AuthConfig auth;
  auth.tokens = in.text("tokens", "");
  ObjectReader certificates = in.object("certificates");
  for (const std::string& glob : certificates.keys()) {
    if (const std::string fault = globFault(glob); !fault.empty()) certificates.fail(glob, fault);
    auth.certificates.push_back({glob, readRole(certificates, glob, Role::reader)});
  }
  auth.local = readRole(in, "local", kLocal);
  return auth;
}

}  // namespace psd

#include "server/auth/auth_config.h"

#include "common/config/globs.h"

namespace psd {
namespace {

void readCertificates(ConfigReader& in, std::vector<CertificateRole>& roles) {
  const std::vector<std::string_view> names(kRoleNames.begin(), kRoleNames.end());
  in.declare({"certificates",
              "Roles of clients with a TLS certificate, by a glob (`*`, `?`, `[abc]`) of its common name or "
              "one of its alternative names (DNS, mail, URI). The first that matches counts."},
             {{"type", "object"},
              {"propertyNames", {{"minLength", 1}}},
              {"additionalProperties", {{"enum", names}}},
              {"default", nlohmann::ordered_json::object()}});
  if (in.describes()) return;
  ObjectReader certificates = in.values().object("certificates");
  for (const std::string& glob : certificates.keys()) {
    if (const std::string fault = globFault(glob); !fault.empty()) certificates.fail(glob, fault);
    certificates.alwaysOffDefault(glob);
    // choice() validated the name.
    const Role role = parseRole(certificates.choice(glob, roleName(Role::reader), names)).value();
    roles.push_back({glob, role});
  }
}

}  // namespace

AuthConfig readAuth(ConfigReader in) {
  AuthConfig auth;
  in.path({"tokens",
           "Path of the token file, lines `NAME ROLE sha256:HEX` as `psd token new` prints them. Empty: "
           "there are no tokens."},
          auth.tokens);
  readCertificates(in, auth.certificates);
  std::vector<std::pair<std::string_view, Role>> roles;
  for (const std::string_view name : kRoleNames) roles.emplace_back(name, parseRole(name).value());
  in.choice<Role>({"local", "Role of the daemon's own user and of root at a Unix socket, without a token."},
                  auth.local, roles);
  return auth;
}

}  // namespace psd

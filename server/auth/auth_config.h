#pragma once

#include <string>
#include <vector>

#include "common/config/config_reader.h"
#include "server/auth/role.h"

namespace psd {

/// The role of clients whose certificate has a name that matches the glob.
struct CertificateRole {
  std::string glob;
  Role role = Role::reader;
};

/// Authorization rules. A value type.
struct AuthConfig {
  std::string tokens;                         ///< path of the token file; empty: there are no tokens
  std::vector<CertificateRole> certificates;  ///< the first match applies
  Role local = Role::admin;                   ///< of the daemon's own user and root on a Unix socket
};

/// Reads the key `auth`. Does not read the token file.
AuthConfig readAuth(ConfigReader in);

}  // namespace psd

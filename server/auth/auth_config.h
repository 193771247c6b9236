#pragma once

#include <string>
#include <vector>

#include "common/config/object_reader.h"
#include "server/auth/role.h"

namespace psd {

/// A role for whoever has a certificate with a name that the glob matches.
struct CertificateRole {
  std::string glob;
  Role role = Role::reader;
};

/// Who may do what. A value type.
struct AuthConfig {
  std::string tokens;                         ///< path of the token file; empty: nobody has a token
  std::vector<CertificateRole> certificates;  ///< the first that matches counts
  Role local = Role::admin;                   ///< of the daemon's own user and root at a Unix socket
};

/// Reads the key `auth`. Problems go to the reader. The token file is not read.
AuthConfig readAuth(ObjectReader in);

}  // namespace psd

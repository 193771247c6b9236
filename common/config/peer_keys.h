#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/auth/credentials.h"
#include "common/config/config_reader.h"
#include "common/os/address.h"

namespace psd {

/// Reads a list of addresses at which a daemon can be reached; refuses others by their place in the list.
std::vector<Address> readDialable(ConfigReader& in, const Key& key);

/// Reads the keys `token_file`, `tls_ca`, `tls_cert` and `tls_key` of an object: what this daemon presents to
/// another one. `object`: the path of the object; `role`: that the other daemon requires; `peer`: what it is
/// to this one, as "its primary".
CredentialFlags readCredentialKeys(ConfigReader& in, std::string_view object, std::string_view role,
                                   std::string_view peer);

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"

namespace psd {

/// Address of an etcd member: "http://HOST:PORT", or https:// for TLS. A value type.
struct EtcdMember {
  std::string host;  ///< a name or an IP address, without brackets
  uint16_t port = 2379;
  bool tls = false;

  /// "HOST:PORT", an IPv6 address in brackets.
  std::string authority() const;
  std::string toString() const;
  bool operator==(const EtcdMember&) const = default;
};

/// The error quotes the text and shows the form.
Result<EtcdMember> parseEtcdMember(std::string_view text);

/// Options of the etcd client. A value type.
struct EtcdOptions {
  std::vector<EtcdMember> members;  ///< at least one
  std::string user;                 ///< empty: no authentication
  std::string passwordFile;         ///< its first line is the password; requires `user`
  TlsFiles tls;                     ///< for https:// members
  uint64_t answerMs = 250;          ///< timeout after which a member counts as unreachable
  uint64_t loginMs = 2000;          ///< the same for a login, because etcd hashes passwords slowly
  uint64_t pollMs = 2000;           ///< in addition to the watch, interval at which keys are read
};

}  // namespace psd

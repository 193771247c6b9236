#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/status/status.h"

namespace psd {

/// Where a member of etcd answers: "http://HOST:PORT", or https:// for TLS. A value type.
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

/// How to reach an etcd. A value type.
struct EtcdOptions {
  std::vector<EtcdMember> members;  ///< at least one
  std::string user;                 ///< empty: none is shown
  std::string passwordFile;         ///< its first line is the password; given with `user`
  TlsFiles tls;                     ///< for members https://
  uint64_t answerMs = 250;          ///< after which a member that has not answered counts as away
  uint64_t loginMs = 2000;          ///< the same for a password, which etcd hashes slowly
  uint64_t pollMs = 2000;           ///< beside watching, keys are read as often
};

}  // namespace psd

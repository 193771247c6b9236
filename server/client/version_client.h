#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/safetensors/published_version.h"
#include "common/status/status.h"

namespace psd {

/// A version's file in memory, verified.
struct PulledVersion {
  VersionInfo info;
  std::span<const std::byte> bytes;  ///< valid during the call that receives it
  std::string patchFault;            ///< why a patch of it was not used; empty: there was no fault
};

/// Pulls version `number` of a daemon and verifies it; 0: the newest. Leases it meanwhile. `take` receives
/// it. `timeout`: for connecting and for the whole call.
Status pullVersion(const Address& address, uint64_t number, std::chrono::milliseconds timeout,
                   const Credentials& credentials, const std::function<Status(const PulledVersion&)>& take);

/// Follows the versions of a daemon over one connection: pulls the newest one that is newer than `known`
/// (number 0: none), of another history or, after a backup of the daemon was restored, another version of the
/// same number, as soon as it exists, and passes it to `take`, which returns whether to continue. Updates
/// `known` after each. Returns when `take` ends it, without `waits` when there is no such version now, or
/// with the Error of the connection. Blocks; versions that come while `take` runs are left out, except the
/// newest.
Status followVersions(const Address& address, std::chrono::milliseconds timeout,
                      const Credentials& credentials, VersionInfo& known, bool waits,
                      const std::function<Result<bool>(const PulledVersion&)>& take);

}  // namespace psd

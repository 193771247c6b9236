#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "server/client/version_client.h"

// Versions of a model that several daemons serve, each of which publishes a part. `daemons`: the primary of
// each partition, in their order. All functions block.

namespace psd {

/// How to call the daemons. A value type.
struct DaemonsCall {
  std::vector<Address> daemons;
  std::chrono::milliseconds timeout{
      0};  ///< for connecting, and for each answer that is not a version's bytes
  Credentials credentials;
};

/// By daemon, the versions that exist there.
Result<std::vector<std::vector<VersionInfo>>> fetchVersionLists(const DaemonsCall& call);

/// Pulls the parts of the version `number` of one moment (0: the newest) from all daemons at the same time,
/// with one lease, and passes the whole version to `take`.
Status pullWholeVersion(const DaemonsCall& call, uint64_t number,
                        const std::function<Status(const PulledVersion&)>& take);

/// followVersions() of all daemons: by `take`, `moved` and `upToDate` of `terms`.
Status followWholeVersions(const DaemonsCall& call, VersionInfo& known, const FollowTerms& terms);

}  // namespace psd

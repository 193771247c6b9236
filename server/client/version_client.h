#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/auth/credentials.h"
#include "common/os/address.h"
#include "common/patch/content_sum.h"
#include "common/safetensors/published_version.h"
#include "common/status/status.h"
#include "common/types/daemon_addresses.h"
#include "common/wire/stop_signal.h"
#include "server/client/patience.h"

namespace psd {

/// A version's file in memory, verified.
struct PulledVersion {
  VersionInfo info;
  std::span<const std::byte> bytes;  ///< valid during the call that receives it
  std::string patchFault;            ///< why a patch of it was not used; empty: there was no fault
  /// By which it was made from the version before; valid as `bytes`. Empty: it was read whole.
  std::span<const std::byte> patch = {};
};

/// Pulls version `number` of a daemon and verifies it; 0: the newest. Leases it meanwhile, with the id
/// `lease` if that is not 0. `take` receives it. `timeout`: for connecting and, unless the wait is endless,
/// for the whole call.
Status pullVersion(const Address& address, uint64_t number, std::chrono::milliseconds timeout,
                   const Credentials& credentials, const std::function<Status(const PulledVersion&)>& take,
                   uint64_t lease = 0, Patience patience = Patience::asToConnect);

/// A version in memory, from which patches lead to later ones. A value type.
struct PatchBase {
  VersionInfo info;
  std::vector<std::byte> bytes;  ///< of its file
  std::vector<ContentSum> sums;  ///< contentSum() of each tensor; empty: `bytes` are no version
};

/// How to follow a daemon. The functions run on the calling thread, except `take`, during which of the others
/// only `moved` may run.
struct FollowTerms {
  std::chrono::milliseconds timeout{};  ///< to connect and log in
  /// Receives each version; returns whether to continue.
  std::function<Result<bool>(const PulledVersion&)> take;
  /// Called when the daemon has no newer version than the one that was taken last; false ends the call. Null:
  /// it waits for the next one.
  std::function<bool()> upToDate;
  /// Checks a version before it is pulled; an Error ends the call. Null: all are pulled.
  std::function<Status(const VersionInfo&)> admit;
  /// Receives how current the daemon is, about once a second, and when that was asked; an Error ends the
  /// call. Null: the daemon is not asked.
  std::function<Status(const VersionFreshness&, std::chrono::steady_clock::time_point)> check;
  /// Receives where the model has moved to, before the call ends with an Error (standby) that says so too.
  /// May be null.
  std::function<void(const DaemonAddresses&)> moved;
  wire::StopSignal* stop = nullptr;  ///< ends the call; null: nothing does
};

/// Follows the versions of a daemon over one connection: pulls the newest one that is newer than `known`
/// (number 0: none) or of another history as soon as it exists, by a patch of `base` where there is one, and
/// passes it to FollowTerms::take. Updates `known` after each, and `base` with each transfer, also one that
/// fails. Returns when `take` ends it, or with the Error of the connection. Blocks; versions that come while
/// `take` runs are left out, except the newest.
Status followVersions(const Address& address, const Credentials& credentials, VersionInfo& known,
                      PatchBase& base, const FollowTerms& terms);

}  // namespace psd

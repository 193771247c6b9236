#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "trainer/client/api/version_reader.h"
#include "trainer/client/transport/daemon_connection.h"

// The calls of the interface Reading for published versions. Each function is called on the connection's
// event loop, where the promises resolve. Errors of the daemon name it.

namespace psd {

/// A lease of a version, see Reading.leaseVersion. A value type.
struct VersionLease {
  uint64_t id = 0;
  uint64_t number = 0;  ///< 0: the newest version
  std::chrono::seconds time{};
};

kj::Promise<Result<std::vector<PublishedVersion>>> readVersions(DaemonConnection& connection);
/// Resolves with the newest version once its number is at least `number`. overloaded: another such call of
/// the connection is in progress, or has just been cancelled.
kj::Promise<Result<PublishedVersion>> awaitVersion(DaemonConnection& connection, uint64_t number);
kj::Promise<Result<VersionFreshness>> readFreshness(DaemonConnection& connection);
kj::Promise<Result<PublishedVersion>> leaseVersion(DaemonConnection& connection, const VersionLease& lease);
kj::Promise<Status> releaseVersion(DaemonConnection& connection, uint64_t lease);
/// The versions that a patch leads from and to. A value type.
struct PatchKey {
  uint64_t history = 0, from = 0, to = 0;
};
/// The size of a patch; 0: there is none.
kj::Promise<Result<uint64_t>> findPatch(DaemonConnection& connection, const PatchKey& ends);
/// Fills `into`, which outlives the promise, with the bytes of the patch from `offset` on.
kj::Promise<Status> readPatchBytes(DaemonConnection& connection, const PatchKey& ends, uint64_t offset,
                                   std::span<std::byte> into);
/// Fills `into`, which outlives the promise, with the bytes of the version's file from `offset` on.
kj::Promise<Status> readVersionBytes(DaemonConnection& connection, uint64_t number, uint64_t offset,
                                     std::span<std::byte> into);

}  // namespace psd

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <capnp/capability.h>
#include <kj/async.h>

#include "common/status/status.h"
#include "common/types/model_spec.h"
#include "common/types/version_info.h"
#include "schema/psd.capnp.h"
#include "server/loop/background.h"
#include "server/move/moved_versions.h"

namespace psd {

void writeContinuation(const VersionsContinuation& versions, schema::MovedVersions::Builder out);
VersionsContinuation readContinuation(schema::MovedVersions::Reader in);

/// Copies the published versions of a model that moves, one after another. From one daemon to one the file
/// goes into the sink of the target. Otherwise reads the parts of a version from all sources, and sends each
/// target its part: holds one version in memory, twice while the parts of several sources are joined. Belongs
/// to one event loop. Errors name the daemons.
class VersionCarrier final {
 public:
  struct Source {
    std::string name;
    schema::Reading::Client reading;
    schema::Admin::Client admin;
    std::map<uint64_t, uint64_t> bytes{};  ///< by version, those of its file
  };
  struct Target {
    std::string name;
    schema::ArrivingModel::Client arriving;
    ModelSpec partition;
  };

  /// `seed`: see MovedVersion.
  VersionCarrier(std::vector<Source> sources, std::vector<Target> targets, uint64_t seed);

  /// Bytes of all versions; `lead`: what the first source says.
  kj::Promise<Result<uint64_t>> bytes(schema::VersionTerms::Reader lead);
  /// Copies the oldest version that all sources have and that was not copied yet. One that a source has
  /// removed meanwhile, or cannot read, is left out. Resolves with how many are left; nullopt: there was
  /// none. ErrorCode::modelMismatch: one of several sources has replaced it meanwhile.
  kj::Promise<Result<std::optional<uint64_t>>> copyNext() { return isOneToOne() ? relayNext() : recutNext(); }
  uint64_t copied() const { return copies_; }
  /// Writes how the versions continue at a target, once copyNext() has found none left while they are frozen.
  Status continueAt(size_t target, const std::vector<capnp::Response<schema::QuiescedResult>>& sources,
                    schema::MovedVersions::Builder out) const;

 private:
  using Copied = Result<std::optional<uint64_t>>;
  using Files = std::vector<std::vector<std::byte>>;

  bool isOneToOne() const { return sources_.size() == 1 && targets_.size() == 1; }
  kj::Promise<Copied> relayNext();
  kj::Promise<Copied> recutNext();
  kj::Promise<Copied> recutNextOf(const std::vector<VersionInfo>& versions);
  kj::Promise<Copied> recut(uint64_t number, Files files);
  /// The versions that all sources have.
  kj::Promise<Result<std::vector<VersionInfo>>> list();
  /// Reads version `number` from all sources; nothing: one has it no longer, or has left it out as damaged.
  kj::Promise<Result<std::optional<Files>>> read(uint64_t number);
  /// Sends a version to all targets; those older than `oldest` exist no longer.
  kj::Promise<Status> send(const std::shared_ptr<const MovedVersion>& version, uint64_t oldest);

  std::vector<Source> sources_;
  std::vector<Target> targets_;
  std::vector<ModelSpec> partitions_;  // of the targets
  const uint64_t seed_;
  std::vector<uint64_t> numbers_;  // of recutNext(): the versions that existed last
  std::set<uint64_t> leftOut_;     // of recutNext()
  uint64_t newest_ = 0;            // number of the version copied last
  uint64_t oldest_ = 0;            // of relayNext(): number of the oldest that existed last
  uint64_t copies_ = 0;
  Background background_;
};

}  // namespace psd

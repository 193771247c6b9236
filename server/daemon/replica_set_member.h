#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <kj/async-io.h>

#include "server/cluster/replica_controller.h"
#include "server/config/daemon_config.h"
#include "server/daemon/folder_mark.h"
#include "server/engine/engine.h"
#include "server/hosting/daemon.h"
#include "server/hosting/parameter_host.h"
#include "server/service/administration.h"

namespace psd {

/// A daemon's membership in a replica set, if an engine is configured: owns the engine and the
/// ReplicaController, and applies the member's decisions to the server. Owned by the control loop's thread.
class ReplicaSetMember final : public ReplicatedModel {
 public:
  /// The parts of the daemon that it uses; they outlive it.
  struct Parts {
    Daemon& daemon;
    Coordinator& coordinator;
    ParameterHost& host;
    Administration& administration;
    std::shared_ptr<Replicator> replicator;
    Env& env;
  };

  /// Reads the engine's files and this daemon's credentials; does not connect. `listen`: the addresses at
  /// which this daemon listens.
  static Result<std::unique_ptr<ReplicaSetMember>> make(const Parts& parts,
                                                        const std::vector<Address>& listen,
                                                        kj::AsyncIoContext& io);
  ~ReplicaSetMember() noexcept(false) override;

  /// Starts to determine this daemon's role. Joins are rejected until it serves.
  void start();
  ReplicaController& controller() { return *controller_; }
  /// Whether another daemon serves the model, or will when this one ends.
  bool continuesElsewhere() const;
  /// From now on this daemon's own keys are as in this configuration, whichever daemon is the primary.
  void setOwnConfig(const nlohmann::ordered_json& effective);
  /// The limits of this standby that are below its primary's, see psd::lowerLimits(); empty on a primary.
  std::vector<std::string> lowerLimits() const;

 private:
  /// The copy of a primary's model, and the configuration that governs it.
  struct Copy {
    std::shared_ptr<ServedModel> model;
    LoadedConfig config;
  };

  ReplicaSetMember(const Parts& parts, std::unique_ptr<Engine> engine);

  Status serve(uint64_t term, bool hasAllVersions) override;
  void continueServing(uint64_t term) override;
  bool saves() const override;
  bool hasValues() const override;
  kj::Promise<Result<std::string>> sendCopy(std::shared_ptr<ImageStream> to) override;
  Result<CopyPlace> makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t term) override;
  void showCopy() override;
  void serveCopy(FollowedState followed, uint64_t term) override;

  Status openVersions(bool hasAll);
  /// Whether this daemon also stores the copy of a primary with this configuration on its own disk.
  Result<bool> keepsOnDisk(const nlohmann::ordered_json& primarys) const;
  /// This daemon's configuration with the model rules of its primary's.
  Result<LoadedConfig> withPrimaryRules(const nlohmann::ordered_json& primarys) const;
  static void logMarkFailure(const Status& written);
  /// Warns if limits are below the primary's, once per change.
  void warnOfLimits();

  Daemon& daemon_;
  Coordinator& coordinator_;
  ParameterHost& host_;
  Administration& administration_;
  const std::shared_ptr<Replicator> replicator_;
  Env& env_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ReplicaController> controller_;
  const std::shared_ptr<FolderMark> mark_;
  mutable std::mutex mutex_;          // guards the members below
  nlohmann::ordered_json ownConfig_;  // this daemon's configuration, of which only keysOfOneDaemon() are used
  nlohmann::ordered_json primaryConfig_;  // the configuration of the primary that was copied; null: none
  bool primaryWaits_ = false;             // whether the primary waits for this standby
  std::vector<std::string> warned_;       // lowerLimits() at the last warning
  std::optional<Copy> copy_;
};

}  // namespace psd

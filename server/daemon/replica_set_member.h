#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <kj/async-io.h>

#include "server/config/daemon_config.h"
#include "server/daemon/folder_mark.h"
#include "server/daemon/server.h"
#include "server/engine/engine.h"

namespace psd {

/// A daemon's membership in a replica set, if an engine is configured: owns the engine and the
/// ReplicaController, and applies the member's decisions to the server. Owned by the control loop's thread.
class ReplicaSetMember final : public ServerReplicaSet, public DaemonControl {
 public:
  /// The arguments must outlive the result. Reads the engine's files and this daemon's credentials; does not
  /// connect.
  static Result<std::unique_ptr<ServerReplicaSet>> make(Server& server, kj::AsyncIoContext& io, Env& env);
  ~ReplicaSetMember() noexcept(false) override;

  void start() override;
  ReplicaController& member() override { return *member_; }
  bool continuesElsewhere() const override;
  void setOwnConfig(const nlohmann::ordered_json& effective) override;
  std::vector<std::string> lowerLimits() const override;

 private:
  /// The copy of a primary's model, and the configuration that governs it.
  struct Copy {
    std::shared_ptr<ServedModel> model;
    LoadedConfig config;
  };

  ReplicaSetMember(Server& server, Env& env, std::unique_ptr<Engine> engine);

  Status serve(uint64_t term) override;
  void continueServing(uint64_t term) override;
  bool saves() const override;
  bool hasValues() const override;
  kj::Promise<Result<std::string>> sendCopy(std::shared_ptr<ImageStream> to) override;
  kj::Promise<bool> closeGates() override;
  void openGates() override;
  void disconnectTrainers() override;
  Result<CopyPlace> makeCopy(Env& files, const Checkpoint& checkpoint, uint64_t term) override;
  void showCopy() override;
  void serveCopy(FollowedState followed, uint64_t term) override;
  void movedAway(const RecordedMove& moved) override;
  void exitWithPrimary(const std::string& reason) override;
  [[noreturn]] void restartProcess(const std::string& why) override;
  void fail(const Status& why) override;
  void note(const std::string& what, const std::string& line) override;

  /// Whether this daemon also stores the copy of a primary with this configuration on its own disk.
  Result<bool> keepsOnDisk(const nlohmann::ordered_json& primarys) const;
  /// This daemon's configuration with the model rules of its primary's.
  Result<LoadedConfig> withPrimaryRules(const nlohmann::ordered_json& primarys) const;
  static void logMarkFailure(const Status& written);
  /// Warns if limits are below the primary's, once per change.
  void warnOfLimits();

  Server& server_;
  Env& env_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ReplicaController> member_;
  const std::shared_ptr<FolderMark> mark_;
  mutable std::mutex mutex_;          // guards the members below
  nlohmann::ordered_json ownConfig_;  // this daemon's configuration, of which only keysOfOneDaemon() are used
  nlohmann::ordered_json primaryConfig_;  // the configuration of the primary that was copied; null: none
  std::vector<std::string> warned_;       // lowerLimits() at the last warning
  std::optional<Copy> copy_;
};

}  // namespace psd

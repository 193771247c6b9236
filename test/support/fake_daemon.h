#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "server/hosting/daemon.h"

namespace psd::testing {

/// A daemon without trainers, replica set, moves or operators; a test overrides what it needs. Owned by one
/// thread.
class FakeDaemon : public Daemon {
 public:
  explicit FakeDaemon(LoadedConfig loaded = {}) : loaded_(std::move(loaded)) {}

  kj::Promise<bool> closeGates() override { return true; }
  void openGates() override {}
  void disconnectTrainers() override {}
  std::vector<std::string> reachableAt() const override { return {}; }

  Status resume() override { return {}; }
  const LoadedConfig& loaded() const override { return loaded_; }
  void replaceConfig(LoadedConfig loaded) override { loaded_ = std::move(loaded); }
  [[noreturn]] void restart(const std::string& why) override { throw std::logic_error(why); }
  void fail(const Status&) override {}
  void exit(const std::string&) override {}
  void note(const std::string&, const std::string&) override {}

  Status prepare() override { return {}; }
  void adoptMove(const RecordedMove&) override {}
  kj::Promise<Result<bool>> recordMove(const RecordedMove&) override { return Result<bool>(false); }
  Result<MoveOutcome> askLead(const MoveLead&, uint64_t) const override { return MoveOutcome::unknown; }

  DaemonStatus status() const override { return {}; }
  kj::Promise<Result<std::string>> reload(const std::string&) override { return Result<std::string>(""); }
  kj::Promise<Result<std::string>> set(const std::string&, const std::string&) override {
    return Result<std::string>("");
  }
  kj::Promise<Result<std::string>> checkChange(const std::string&) override {
    return Result<std::string>("");
  }

 private:
  LoadedConfig loaded_;
};

}  // namespace psd::testing

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// The durable state from which a bridge resumes after a restart: nothing is exchanged twice, and none of the
/// machine's training is lost. A value type.
struct BridgeState {
  enum class Phase : uint64_t {
    fresh,    ///< no exchange yet
    pushing,  ///< `other` is a snapshot of this machine; base − other goes to the root, as step `pushed`
    adding,   ///< `other` is to be subtracted from this machine, as step `added`; then `base` is common to
              ///< both sides
  };

  Phase phase = Phase::fresh;
  uint64_t incarnation = 0;                  ///< identifies the bridge at both daemons
  Rank rank;                                 ///< at the root
  uint64_t signature = 0;                    ///< of the model
  Step pushed, added;                        ///< the newest steps at the root, and at this machine
  uint64_t updates = 0;                      ///< number of this machine's updates in step `pushed`
  uint64_t rootDaemon = 0, localDaemon = 0;  ///< ids of the daemon processes
  std::vector<Version> basis;                ///< the root's versions of `base`
  std::vector<Version> seen;                 ///< minimum versions that this machine's daemon has reached
  std::vector<Version> counted;              ///< versions of its shards up to which updates are exchanged
  std::vector<float> base, other;            ///< in the model's layout; empty while fresh
};

/// The state file, in a folder that is locked against other bridges. Owned by one thread.
class BridgeFile {
 public:
  /// Creates the folder if it does not exist. ErrorCode::unavailable if another bridge holds its lock.
  static Result<BridgeFile> open(Env& env, const std::string& folder);

  /// The last saved state; a fresh state if there is none.
  Result<BridgeState> load() const;
  /// Durable when it returns; a crash before that leaves the previous state.
  Status save(const BridgeState& state) const;

 private:
  BridgeFile(Env& env, std::string path, std::unique_ptr<FileLock> lock)
      : env_(&env), path_(std::move(path)), lock_(std::move(lock)) {}

  Env* env_;
  std::string path_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace psd

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/ids.h"

namespace psd {

/// What a bridge, or the process that takes its place, needs to go on: nothing is exchanged twice, and
/// nothing that the machine has trained is lost. A value type.
struct BridgeState {
  enum class Phase : uint64_t {
    fresh,    ///< nothing has been exchanged
    pushing,  ///< `other` is a snapshot of this machine; base − other goes to the root, as step `pushed`
    adding,   ///< `other` is what this machine is to lose, as step `added`; then `base` is common to both
              ///< sides
  };

  Phase phase = Phase::fresh;
  uint64_t incarnation = 0;                  ///< by which both daemons know the bridge
  Rank rank;                                 ///< at the root
  uint64_t signature = 0;                    ///< of the model
  Step pushed, added;                        ///< the newest at the root, and here
  uint64_t updates = 0;                      ///< of this machine that the push of `pushed` is of
  uint64_t rootDaemon = 0, localDaemon = 0;  ///< which processes they are
  std::vector<Version> basis;                ///< of `base`, at the root
  std::vector<Version> seen;                 ///< that this machine's daemon has reached at least
  std::vector<Version> counted;              ///< of its shards, up to which updates are exchanged
  std::vector<float> base, other;            ///< in the model's layout; empty while fresh
};

/// The state as a file in a folder that it keeps other bridges out of. Owned by one thread.
class BridgeFile {
 public:
  /// Makes the folder where it is not there. ErrorCode::unavailable where another bridge has it.
  static Result<BridgeFile> open(Env& env, const std::string& folder);

  /// What was saved last; a fresh state where nothing was.
  Result<BridgeState> load() const;
  /// On the disk when it returns; a crash before leaves what was there.
  Status save(const BridgeState& state) const;

 private:
  BridgeFile(Env& env, std::string path, std::unique_ptr<FileLock> lock)
      : env_(&env), path_(std::move(path)), lock_(std::move(lock)) {}

  Env* env_;
  std::string path_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace psd

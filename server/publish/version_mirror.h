#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <kj/async.h>

#include "common/os/env.h"
#include "server/checkpoint/replicator.h"

namespace psd {

/// Repeats the changes of the folder of versions at the standby, in the stream of the log's records.
/// Thread-safe; methods that block run on threads without an event loop.
class VersionMirror {
 public:
  explicit VersionMirror(std::shared_ptr<Replicator> replicator) : replicator_(std::move(replicator)) {}

  /// Sends the file `name` of `folder`, which is complete. Blocks while the standby is behind.
  Status send(Env& env, const std::string& folder, const std::string& name);
  /// Sends a file with this text. Returns the number of the change, for wait().
  uint64_t sendText(const std::string& name, std::string_view text);
  void remove(const std::string& name);
  /// Blocks until the standby, if pushes wait for it, has this change and those before it; 0: all so far.
  /// ErrorCode::shuttingDown after end().
  Status wait(uint64_t number = 0);
  /// How long the wait in progress that began first has taken; 0: there is none.
  std::chrono::milliseconds waited() const;
  /// Ends the waits of other threads, and later ones.
  void end();

 private:
  uint64_t commit(const std::string& name, uint64_t bytes);
  /// Blocks until the promise that `start` returns resolves, or end().
  Status await(const std::function<kj::Promise<void>()>& start);

  const std::shared_ptr<Replicator> replicator_;
  mutable std::mutex mutex_;  // guards the members below
  uint64_t newest_ = 0;       // number of the last change's record
  std::vector<kj::Own<kj::CrossThreadPromiseFulfiller<void>>> waits_;
  std::multiset<std::chrono::steady_clock::time_point> begun_;  // when the waits in progress began
  bool ended_ = false;
};

}  // namespace psd

#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <kj/async.h>

#include "server/checkpoint/replay.h"
#include "server/membership/roster.h"
#include "server/replica/image_stream.h"
#include "server/replica/memory_files.h"
#include "server/replica/replication_config.h"
#include "server/replica/standby_disk.h"
#include "server/replica/standby_files.h"

namespace psd {

/// A follower's progress: `held` is the number of the first record that it does not hold (on its disk, if it
/// keeps the log there), `applied` of the first one that it has not applied.
struct FollowerProgress {
  uint64_t held = 0, applied = 0;
};

/// State that a follower has received besides the parameters. A value type.
struct FollowedState {
  SamplePlan samples;                ///< not begun if no samples were assigned
  std::optional<Departed> departed;  ///< as received from the primary; nothing: not received
  uint64_t updates = 0;              ///< number applied
  uint64_t next = 0;                 ///< number of the first record not in the model; 0: none received
  bool hasAllVersions = true;        ///< in CopyPlace::files: all that the primary has announced
};

/// Where a follower keeps the model. A move-only value type.
struct CopyPlace {
  ParameterStore* store = nullptr;      ///< outlives the follower
  std::unique_ptr<StandbyDisk> disk;    ///< null: in memory only
  std::unique_ptr<StandbyFiles> files;  ///< of the primary's published versions; null: it has none
};

/// A standby's copy of a model: receives the primary's checkpoint and then its log records, in order, queues
/// them in memory and applies them on its own thread, like the replay at a start; with a StandbyDisk it also
/// writes them to disk. Thread-safe; promises resolve on the calling loop.
class Follower final {
 public:
  /// Creates the store from a checkpoint. Called on the follower's thread.
  using Restore = std::function<Result<CopyPlace>(Env& files, const Checkpoint& checkpoint)>;

  Follower(const ReplicationConfig& config, Restore restore);
  ~Follower();

  /// Appends to the checkpoint. ErrorCode::overloaded: out of memory.
  Status image(const ImagePart& part);
  /// Fails the copy because memory for incoming data ran out; returns that Error.
  Status outOfMemory();
  /// The checkpoint at `path` is complete. Resolves once it is in a store and, with a StandbyDisk, on disk.
  kj::Promise<Status> imageDone(std::string path);
  /// Appends bytes of records; they may end within a record. Resolves once the queue has capacity for more
  /// and, with a StandbyDisk, the records are on disk.
  kj::Promise<Result<FollowerProgress>> records(std::span<const std::byte> bytes);
  Result<FollowerProgress> progress() const;
  /// Size and number of records that are held and not applied.
  uint64_t lagBytes() const;
  uint64_t lagRecords() const;
  /// Whether the primary's checkpoint is being restored into a store or written to disk.
  bool restoring() const;

  /// Accepts nothing more: the primary receives an error that this standby is about to exit. A takeover is
  /// still possible if the primary dies at that moment: see finish().
  void leave();
  /// The run is over: accepts nothing more. Resolves once nothing is being applied or written to disk.
  kj::Promise<void> end();
  /// Applies what is held and accepts nothing more. Blocks. An Error: the copy is unusable.
  Result<FollowedState> finish();

 private:
  using StatusFulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Status>>;
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;
  using Bytes = std::vector<std::byte>;

  void run();
  void run(kj::WaitScope& scope);
  /// Requires the mutex: whether the thread has work.
  bool hasWork() const;
  Status restore(const std::string& path, kj::WaitScope& scope);
  Status apply(std::deque<Bytes> records);
  /// Flushes what was applied to disk and resolves the waiters for that.
  Status keep();
  Status apply(Bytes record);
  Status apply(const FileChange& change);
  /// Empty memory for a record, that of an applied one if possible: faulting in new pages takes longer than
  /// filling them.
  Bytes memoryFor(uint64_t bytes);
  /// Keeps the memory of an applied record for memoryFor(). That of an update of several shards is not kept.
  void reuse(Bytes memory);
  /// Takes the next bytes of the arriving record, at most kWarmBytes; queues the record once it is complete
  /// and its checksum is right.
  Status arrive(std::span<const std::byte>& bytes);
  /// The size that arriving_ announces; an Error if no record has it.
  Result<uint64_t> announced() const;
  Status take(Bytes record);
  void fail(const Status& status);
  /// Requires the mutex: an Error if nothing more is accepted.
  Status taking() const;
  FollowerProgress progressNow() const { return {heldNow(), applied_}; }
  /// The number reported to the primary as held.
  uint64_t heldNow() const;
  uint64_t bytesMax() const;

  const ReplicationConfig config_;
  const Restore restore_;
  MemoryFiles files_;

  // Used by the thread only.
  std::unique_ptr<StandbyDisk> disk_;  // null: records are held in memory only
  std::unique_ptr<StandbyFiles> standbyFiles_;
  bool hasAllFiles_ = true;
  std::optional<SamplesReplay> samples_;
  std::unique_ptr<Replayer> replayer_;
  std::optional<Departed> departed_;

  // Used by the caller only: the start of an incomplete record, its checksum so far, and its size once that
  // has arrived.
  Bytes arriving_;
  std::optional<uint64_t> arrivingBytes_;
  RecordChecksum arrivingChecksum_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::string imagePath_;
  std::optional<StatusFulfiller> imageWaiter_;
  bool restored_ = false;
  std::deque<Bytes> spare_;  // cleared memory of applied records
  std::deque<Bytes> queue_;
  uint64_t queuedBytes_ = 0;
  bool keeps_ = false;                          // also on disk
  uint64_t held_ = 0, applied_ = 0, kept_ = 0;  // first record not held, not applied, not on disk
  std::vector<Fulfiller> roomWaiters_;
  std::vector<std::pair<uint64_t, Fulfiller>> keptWaiters_;  // until all below is on disk
  std::vector<Fulfiller> endWaiters_;
  bool leaving_ = false;
  bool ending_ = false, ended_ = false;  // ended: the thread is done
  Status status_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd

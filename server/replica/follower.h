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

namespace psd {

/// How far a follower is: the numbers of the first records that it does not hold, where it is to keep them on
/// its disk there, and that it has not applied.
struct FollowerProgress {
  uint64_t held = 0, applied = 0;
};

/// What a daemon that followed another one knows besides the parameters. A value type.
struct Followed {
  SamplePlan samples;                ///< not begun where none were dealt
  std::optional<Departed> departed;  ///< as the primary told it; nothing: it did not
  uint64_t updates = 0;              ///< that were applied
  uint64_t next = 0;                 ///< number of the first record that is not in the model; 0: none came
};

/// Where a follower keeps the model. A move-only value type.
struct CopyPlace {
  ParameterStore* store = nullptr;    ///< outlives the follower
  std::unique_ptr<StandbyDisk> disk;  ///< null: in memory alone
};

/// A standby's copy of a model: takes the primary's checkpoint and then its records, in order, keeps them in
/// memory and applies them on a thread of its own, as a start does with the log; with a StandbyDisk on the
/// disk, too. Thread-safe; promises resolve on the calling loop.
class Follower final {
 public:
  /// Makes the store of a checkpoint. Called on the follower's thread.
  using Restore = std::function<Result<CopyPlace>(Env& files, const Checkpoint& checkpoint)>;

  Follower(const ReplicationConfig& config, Restore restore);
  ~Follower();

  /// Adds to the checkpoint. ErrorCode::overloaded: there is no memory for it.
  Status image(const ImagePart& part);
  /// There is no memory for what is to be added; gives that Error.
  Status outOfMemory();
  /// The checkpoint at `path` is whole. Resolves when it is in a store, and on the disk where it is to be.
  kj::Promise<Status> imageDone(std::string path);
  /// More bytes of the records, which need not end with a record. Resolves once there is room for more, and
  /// they are on the disk where they are to be.
  kj::Promise<Result<FollowerProgress>> records(std::span<const std::byte> bytes);
  Result<FollowerProgress> progress() const;
  /// Of records that are here and not applied.
  uint64_t lagBytes() const;
  uint64_t lagRecords() const;
  /// Whether the primary's checkpoint is being put into a store, or on the disk.
  bool restoring() const;

  /// Nothing more is taken: the primary is told that this standby is about to end. Who is to take over all
  /// the same, as the primary ended at that moment, may: see finish().
  void leave();
  /// The run is over: nothing more is taken. Resolves once nothing more is applied, or written to the disk.
  kj::Promise<void> end();
  /// Applies what is held; nothing more is taken. Blocks. An Error: the copy is of no use.
  Result<Followed> finish();

 private:
  using StatusFulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<Status>>;
  using Fulfiller = kj::Own<kj::CrossThreadPromiseFulfiller<void>>;
  using Bytes = std::vector<std::byte>;

  void run();
  void run(kj::WaitScope& scope);
  /// With the mutex held: whether the thread has something to do.
  bool hasWork() const;
  Status restore(const std::string& path, kj::WaitScope& scope);
  Status apply(std::deque<Bytes> records);
  /// Brings what was applied to the disk, and lets those go on who wait for that.
  Status keep();
  Status apply(Bytes record);
  /// Cuts off the first whole record of partial_, which begins at `at`. Nothing: it is not whole.
  Result<std::optional<Bytes>> cut(size_t& at) const;
  Status take(Bytes record);
  void fail(const Status& status);
  /// With the mutex held: why nothing more is taken, if so.
  Status taking() const;
  FollowerProgress progressNow() const { return {heldNow(), applied_}; }
  /// What the primary is told.
  uint64_t heldNow() const;
  uint64_t bytesMax() const;

  const ReplicationConfig config_;
  const Restore restore_;
  MemoryFiles files_;

  // The thread's alone.
  std::unique_ptr<StandbyDisk> disk_;  // null: what is held is in memory alone
  std::optional<SamplesReplay> samples_;
  std::unique_ptr<Replayer> replayer_;
  std::optional<Departed> departed_;

  Bytes partial_;  // the caller's: what came of a record that is not whole

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::string imagePath_;
  std::optional<StatusFulfiller> imageWaiter_;
  bool restored_ = false;
  std::deque<Bytes> queue_;
  uint64_t queuedBytes_ = 0;
  bool keeps_ = false;                          // on the disk, too
  uint64_t held_ = 0, applied_ = 0, kept_ = 0;  // first records that are not here, applied, on the disk
  std::vector<Fulfiller> roomWaiters_;
  std::vector<std::pair<uint64_t, Fulfiller>> keptWaiters_;  // for the disk to have all below
  std::vector<Fulfiller> endWaiters_;
  bool leaving_ = false;
  bool ending_ = false, ended_ = false;  // ended: the thread does nothing more
  Status status_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <kj/mutex.h>

#include "server/checkpoint/checkpoint_schedule.h"
#include "server/checkpoint/disk_use.h"
#include "server/checkpoint/durability_config.h"
#include "server/checkpoint/held_folder.h"
#include "server/checkpoint/log_writer.h"
#include "server/checkpoint/rows_copy.h"
#include "server/checkpoint/store_state.h"
#include "server/status/daemon_status.h"

namespace psd {

/// What is saved: a store that is being trained, and how its shards may be read.
struct CheckpointSource {
  /// One parameter group and the policy that rules it.
  struct Group {
    std::string policy;  ///< name of the policy, for the manifest
    bool live = false;   ///< updates take no lock, so reading takes none either
    /// Lock that is held while an update of several of the group's shards is made; null: there are no such
    /// updates.
    std::shared_ptr<ShardLock> together = nullptr;
    bool operator==(const Group&) const = default;  // another policy of the same kind has another lock
  };
  std::shared_ptr<ParameterStore> store;
  /// The groups as they are ruled now: policies may change while the daemon runs. Called on the
  /// checkpointer's thread.
  std::function<std::vector<Group>()> groups;
  std::shared_ptr<LogWriter> log;           ///< null: there is no log
  uint64_t logBytesBefore = 0;              ///< of the previous daemon's log that is in no checkpoint
  std::shared_ptr<GuardedSamples> samples;  ///< the plan of the samples; null: there is none
  std::shared_ptr<HeldFolder> folder;       ///< that it is saved in; null: nobody has to hold it
  std::set<uint64_t> damaged;               ///< checkpoints there that do not count
  std::shared_ptr<std::mutex>
      oneAtATime;  ///< held while a checkpoint of the store is written; null: there are no others
  std::function<Status()> beforeTold =
      nullptr;  ///< see Durability::beforeCheckpointTold(); null: there is nothing
};

/// Takes checkpoints of a store while it is trained, on a thread of its own: each shard is copied under its
/// lock, into memory that is there already, and written to the disk without; row shards as RowsCopy does it.
/// Shards of which updates are made together are copied between two of these. A failure is logged and tried
/// again; what was saved before stays. Thread-safe.
class Checkpointer {
 public:
  /// `nextNumber`: number of the first checkpoint. `env` outlives the checkpointer.
  Checkpointer(Env& env, DurabilityConfig config, CheckpointSource source, uint64_t nextNumber);
  /// Ends the thread, without a last checkpoint.
  ~Checkpointer();

  /// Takes a checkpoint that begins after the call. Blocks. shuttingDown: the thread ends before that.
  Status takeNow();
  /// Lets a checkpoint be taken now, and does not wait for it.
  void takeSoon();
  /// Takes a last checkpoint, if anything changed since the one before, and ends the thread. Blocks. Further
  /// calls do nothing.
  Status finish();
  /// Takes over the `every_…` keys of this configuration.
  void follow(const DurabilityConfig& config);

  /// The checkpointer's part of the status, all but the type and the path.
  DurabilityStatus status() const;

 private:
  /// How one checkpoint went.
  struct Report {
    std::string path;
    double finishedAt = 0;
    double seconds = 0;
    double pauseSeconds = 0;  ///< longest that an update waited for a copy
    uint64_t bytes = 0;
    /// What the checkpoint holds: updates of all shards together, and bytes of the log up to its position.
    CheckpointSchedule::Progress progress;
  };

  void run();
  bool due() const;
  Status take();
  /// Writes one checkpoint. Nothing where a group got another policy meanwhile, whose updates the copies know
  /// nothing of.
  Result<std::optional<Report>> write(uint64_t number);
  /// Whether the log goes on from the next checkpoint. A broken log begins anew only where there is a
  /// checkpoint already. Else a daemon that died before the next checkpoint was finished would leave updates
  /// that no checkpoint leads to, and the next daemon could not tell them from updates whose checkpoint was
  /// removed.
  Result<bool> mayBeginLog() const;
  /// Brings the log to the disk when the copies are made, so that they hold no more than it. Where that fails
  /// and nothing was promised of the log, gives it up, and the manifest names none.
  Status endLog(Manifest& manifest);
  /// The checkpoints here that are parts of one of the whole model, the newest and the one before it.
  Result<std::set<uint64_t>> partsOfWhole() const;
  /// Removes what `keep` does not keep.
  Status prune();
  /// Shards [first, last) of a checkpoint that are copied before the first of them is written.
  struct Span {
    size_t first = 0, last = 0;
    bool operator==(const Span&) const = default;
  };
  /// The newest checkpoint, as the next one may go on from it.
  struct Base {
    ManifestBase name;
    std::vector<EarlierRows> rowShards;
    uint64_t length = 1;  ///< of the chain of checkpoints that ends with it
  };
  /// Whether the next checkpoint may leave out the rows that have not changed since base_.
  bool mayGoOn() const;
  /// What the next checkpoint may go on from, now that this one is finished.
  Base baseAfter(const Manifest& manifest, const CheckpointWriter& writer,
                 const std::vector<CheckpointSource::Group>& groups) const;
  /// Begins to copy a row shard, whose lock is held. `index`: its place among the manifest's.
  std::unique_ptr<RowsCopy> beginRows(RowShard& shard, size_t index, Manifest& manifest, bool live,
                                      bool goesOn) const;
  /// Cuts the shards into spans: each shard alone, but shards of which updates are made together in one.
  static std::vector<Span> spansOf(const Manifest& manifest,
                                   const std::vector<CheckpointSource::Group>& groups);
  /// Makes room for the copies of any span: image k is for the shards that are number k in a span.
  Status makeImages(std::vector<Span> spans);
  /// Copies the shards of a span, begins to copy its row shards, and adds to the longest pause.
  Status copySpan(const Span& span, Manifest& manifest, const std::vector<CheckpointSource::Group>& groups,
                  const Lanes& lanes, std::vector<std::unique_ptr<RowsCopy>>& rows, bool goesOn,
                  double& pauseSeconds);
  /// Writes the rows of a span's row shards.
  Status writeRows(const Span& span, std::vector<std::unique_ptr<RowsCopy>>& rows, Manifest& manifest,
                   CheckpointWriter& writer, double& pauseSeconds);
  /// Notes what a copy that begins is of. `locked`: with the block's lock held.
  void beginShard(const ParameterBlock& block, ManifestBlock& entry, bool locked) const;
  /// The plan of the samples as it is now; nothing where there is none.
  std::optional<SavedSamples> samples() const;
  Status copyShard(Shard& shard, ManifestBlock& entry, bool live, ShardImage& image, Lane& lane,
                   kj::WaitScope& scope, double& pauseSeconds) const;
  /// The number of updates that all shards together have made.
  uint64_t updates() const;
  CheckpointSchedule::Progress progress() const;
  CheckpointSchedule::Terms termsOf(const DurabilityConfig& config) const;
  /// Measures the disk space of the folder.
  void measure();

  Env& env_;
  const DurabilityConfig config_;
  const CheckpointSource source_;

  // The thread's alone.
  uint64_t nextNumber_;
  std::vector<Span> spans_;                   // the spans that images_ has room for
  std::vector<ShardImage> images_;            // room for the copies of one of spans_
  std::optional<SavedSamples> savedSamples_;  // as in the newest checkpoint, or as at the start
  std::optional<Base> base_;                  // nothing: the next checkpoint holds all rows

  mutable std::mutex mutex_;  // guards what follows
  CheckpointSchedule schedule_;
  DiskUse disk_;               // as of the newest measure()
  uint64_t loggedAtLook_ = 0;  // bytes written to the log at that time
  std::condition_variable wake_;
  std::condition_variable taken_;
  bool ending_ = false;
  uint64_t asked_ = 0;   // calls of takeNow()
  uint64_t served_ = 0;  // those before the newest checkpoint that has ended began
  bool lastOne_ = false;
  Status outcome_;      // of the newest try
  Status lastOutcome_;  // of the one that finish() takes
  std::optional<Report> report_;
  double pauseSecondsMax_ = 0;
  uint64_t copyBytes_ = 0;  // of memory that the images take
  uint64_t count_ = 0;
  uint64_t failures_ = 0;
  std::string lastError_;  // empty when the newest try succeeded

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace psd

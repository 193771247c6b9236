#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/auth/credentials.h"
#include "common/plan/shard_plan.h"
#include "common/status/status.h"
#include "common/types/all_reduce.h"
#include "common/types/hyperparameters.h"
#include "common/types/ids.h"
#include "common/types/local_steps.h"
#include "common/types/model_spec.h"
#include "common/types/named_value.h"
#include "common/types/push_outcome.h"
#include "common/types/samples.h"
#include "trainer/client/api/arena_values.h"
#include "trainer/client/api/optimizer_state.h"
#include "trainer/client/api/row_batch.h"

namespace psd {

/// How values travel.
enum class Transport {
  automatic,  ///< shared memory where the daemon offers it, else messages
  rpc,        ///< messages
  shm,        ///< shared memory; joining fails, naming why, where the daemon offers none
};

/// A condition that delays or stops a trainer, or the end of one.
struct ClientEvent {
  enum class What {
    waits,  ///< a call has waited long for its answer
    broke,  ///< the connection to the daemon broke
    back,   ///< the trainer has reconnected
  };
  What what = What::waits;
  std::string line;  ///< human-readable
};

/// How to reach the daemon, and how to behave there.
struct ClientOptions {
  /// "tcp://host:port", "tls://host:port" or "unix:///path"; the first that answers is used.
  std::vector<std::string> servers;
  /// Name and version of this program, which the daemon shows; empty: those of psd-trainer.
  std::string program;
  /// Credential that identifies this program to the daemon; empty: none. A secret. See readCredentials().
  std::string token;
  TlsFiles tls;  ///< for servers at tls://
  /// Total time for which connect() retries while no daemon answers; 0: one attempt.
  std::chrono::milliseconds connectTimeout{30'000};
  /// Time without any bytes from the daemon after which it counts as lost. For a joined trainer the daemon's
  /// lease replaces it.
  std::chrono::milliseconds silence{10'000};
  uint64_t chunkBytes = 1u << 20;  ///< of a slice on the wire, at most (docs/reference/performance.md)
  /// Largest slice that travels in memory of CUDA devices; also limited by the daemon, and to a quarter of
  /// its ring. Two processes share a device by time slicing, and each slice costs several context switches:
  /// large ones are faster.
  uint64_t deviceChunkBytes = 32u << 20;
  /// Limit on slices of gradients through a ring in host memory to a daemon that applies them as they arrive
  /// (hogwild without a log or a standby). Their size is a sixteenth of the model in whole MiB, at least
  /// `chunkBytes`, and at most this, a quarter of the ring and the daemon's limit on slices. Each slice wakes
  /// both ends.
  uint64_t ringChunkBytes = 4u << 20;
  /// Limit on slices in flight per connection; slices smaller than `chunkBytes` may be more. 0: 4, and over a
  /// network as many as fill the path to the daemon, up to 64 slices and 32 MiB; of gradients through a ring
  /// in host memory 2 to 4, at most 8 MiB if that is two. Rows of tables, pushes with rows and initial values
  /// always keep 4 in flight.
  uint32_t window = 0;
  /// Connections of a trainer, each with its own I/O thread; at most one for each shard, and a single one
  /// where values travel through memory shared with the daemon. Each shard uses one of them.
  uint32_t connections = 1;
  /// How long the I/O threads poll for the next message before they sleep: answers are seen sooner, at the
  /// cost of a core's idle time.
  std::chrono::microseconds spin{0};
  Transport transport = Transport::automatic;
  /// The CUDA device of this process that useDeviceMemory() refers to; −1: none. Where the daemon shares
  /// memory of its devices, no ring in host memory is opened besides.
  int cudaDevice = -1;
  /// Codec of gradients, as makeCodec() reads it; empty: the daemon's choice. What a codec leaves out of one
  /// push is added to the next.
  std::string codec;
  /// Codec of parameters in messages; empty: the daemon's choice for a trainer, float32 for a reader.
  std::string pullCodec;
  /// Whether a reconnected trainer continues when the daemon has lost the rows of the model's embedding
  /// tables, which no trainer can restore: the rows then start from their initial values. Otherwise the
  /// trainer's calls fail (unavailable).
  bool acceptLostRows = false;
  /// How long a client whose connection broke tries to reconnect; 0: the first fault is final.
  std::chrono::milliseconds retryTimeout{0};
  /// The number by which daemons identify this trainer's process, for a client that continues the work of
  /// another client of the same trainer: the daemon applies no step twice. 0: a random one.
  uint64_t incarnation = 0;
  /// Whether another client of the same trainer may continue after this one. Then only leave() says goodbye
  /// to the daemons, after which they forget which steps of the incarnation they have applied. After a final
  /// fault the trainer stays joined at the daemons that are alive until this object is destroyed; then, and
  /// after interrupt(), they see a broken connection.
  bool resumable = false;
  /// JoinInfo::daemons of the previous client of this trainer, if that one has pushed rows of embedding
  /// tables. A join at a daemon that has restarted without these rows fails (modelMismatch).
  std::vector<uint64_t> rowsAt;
  /// Whether this trainer averages gradients with others where the daemon's policy requires it
  /// (JoinInfo::allReduce, formAveragingGroup()); a trainer that does not is rejected there.
  bool averages = false;
  /// The trainer's optimizer, as JSON in the form of the configuration's key `optimizer`; empty: the
  /// daemon's. Trains the model if this trainer creates it and the configuration has no optimizer; otherwise
  /// the join fails (invalidArgument) unless the model's optimizer is the same
  /// (JoinInfo::takesHyperparameters: of the same type and flags).
  std::string optimizer;
  /// Whether this client is the bridge of the daemon's machine and not a trainer: see Client::progress(). Its
  /// Membership is ignored.
  bool bridges = false;
  /// Why this trainer cannot continue at other daemons, human-readable; it prevents moves of the model while
  /// the trainer is joined. Empty: it can.
  std::string cannotMove;
  /// Called at least every 50 ms by a thread that waits in a call, without the client's lock; when it returns
  /// false the wait ends (interrupted) and the call continues in the background: its spans must stay valid
  /// until it has finished. For programs whose signal handlers run between such calls. May be null.
  std::function<bool()> keepWaiting;
  /// Called with each event, by a thread that makes a call, without the client's lock; may be null. Within
  /// this and the other callbacks, including `initialValues` of join(), calls of the client and waits for its
  /// calls fail (invalidArgument), except interrupt() and those that only read: done(), finished(), view(),
  /// makeRowBatch(), bytesPulled() and bytesPushed().
  std::function<void(const ClientEvent&)> onEvent;
  /// Called likewise when the client learns that the model has moved, before it connects to the target: with
  /// the addresses of the previous daemon, then those of the next one. May be null.
  std::function<void(const std::vector<std::string>& from, const std::vector<std::string>& to)> onMove;
};

/// Identity of this trainer in the run.
struct Membership {
  Rank rank;
  uint32_t worldSize = 1;  ///< trainers only; 0: the daemon's choice
  bool anyRank = false;    ///< takes the lowest free rank instead of `rank`
};

/// The daemon's answer to the join.
struct JoinInfo {
  bool initializedModel = false;  ///< this trainer was the initializer
  std::string policy;             ///< human-readable; of several groups "fc*: locked, others: hogwild"
  std::string device;             ///< where the shards lie; human-readable
  uint32_t shardCount = 0;
  std::string serverVersion;
  uint32_t rowShardCount = 0;  ///< parts that the embedding tables are cut into
  /// How parameters travel: "shm", "rpc", or "cuda" where useDeviceMemory() is allowed.
  std::string pullTransport = "rpc";
  std::string pushTransport = "rpc";  ///< how gradients travel
  std::string rowTransport;           ///< how rows travel, both ways; empty: the model has no tables
  std::string codec = "none";         ///< of pushes, with its options
  std::string pullCodec = "none";     ///< of pulls; "none" through shared memory
  LocalSteps local;                   ///< whether trainers take local steps, and what they then push
  /// In order, of all daemons; under LocalSteps::fragments `group` is the fragment.
  std::vector<ShardRange> shards;
  AllReduceTerms allReduce;           ///< how trainers average gradients; without a timeout they do not
  ModelSpec model;                    ///< that the daemon serves; of several daemons, all of it
  uint64_t daemon = 0;                ///< random number of the daemon's process; 0 for a reader
  std::vector<uint64_t> daemons;      ///< `daemon` of each of several daemons; empty for a reader
  Rank rank;                          ///< assigned to the trainer
  uint32_t worldSize = 0;             ///< ranks are below it
  uint32_t connections = 1;           ///< in use
  std::string optimizer;              ///< of the model, as JSON in the form of the configuration's key
  bool takesHyperparameters = false;  ///< whether pushes may carry hyperparameters
};

/// sum = the larger of the two, element by element.
inline void addVersions(std::vector<Version>& sum, const std::vector<Version>& part) {
  sum.resize(std::max(sum.size(), part.size()));
  for (size_t i = 0; i < part.size(); i++) sum[i] = std::max(sum[i], part[i]);
}

struct PullInfo {
  /// Per shard, then per row shard, the version that was read; the oldest if it changed during the pull.
  std::vector<Version> versions;
  double seconds = 0;      ///< from the call to the last byte
  uint64_t bytes = 0;      ///< of values, as received
  uint64_t knownRows = 0;  ///< rows among those pulled that some push has touched

  /// Adds the result of another part of the same pull.
  void add(const PullInfo& part) {
    addVersions(versions, part.versions);
    seconds = std::max(seconds, part.seconds);
    bytes += part.bytes;
    knownRows += part.knownRows;
  }
};

/// Elements [begin, begin + count) of the arena.
struct ElementRange {
  uint64_t begin = 0;
  uint64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

/// Samples assigned to a trainer: places [begin, begin + count) of the epoch's order.
struct AssignedSamples {
  enum class What { range, nothingNow, finished };
  What what = What::nothingNow;
  uint64_t epoch = 0;  ///< from 0
  uint64_t begin = 0;
  uint32_t count = 0;
  /// With `nominal`: elements whose policy applies every gradient separately, in order and not adjacent. For
  /// these the trainer pushes count / nominal times its gradient; for the others the policy weighs by
  /// samples.
  std::vector<ElementRange> scaledByTrainer;
  std::vector<uint32_t> unweightedTables;  ///< likewise, tables whose rows' gradients the trainer weighs
  bool mixed = false;  ///< some parameter groups of the daemon weigh by samples, others do not
};

/// A daemon's process and its term (docs/guides/standby.md). A value type.
struct ServerIdentity {
  uint64_t daemon = 0;  ///< random number of the process, as JoinInfo::daemon
  uint64_t term = 0;    ///< term in which this trainer joined it as primary; 0: it can have no standby
  bool operator==(const ServerIdentity&) const = default;
};

struct PushInfo {
  std::vector<Version> versions;  ///< per shard, then per row shard, the newest in the answers
  /// Maximum over the shards of: version when applied − version the gradient was computed from.
  uint64_t staleness = 0;
  double seconds = 0;
  PushOutcome outcome = PushOutcome::applied;  ///< stale and late: for at least one shard; never received
  uint64_t bytes = 0;                          ///< of gradient, as sent
  /// The daemons that answered; of a push that was sent again, those of the last time.
  std::vector<ServerIdentity> answeredBy = {};

  /// Adds the result of another part of the same push.
  void add(const PushInfo& part) {
    addVersions(versions, part.versions);
    staleness = std::max(staleness, part.staleness);
    seconds = std::max(seconds, part.seconds);
    outcome = std::max(outcome, part.outcome);
    bytes += part.bytes;
    for (const ServerIdentity& one : part.answeredBy) {
      if (std::ranges::find(answeredBy, one) == answeredBy.end()) answeredBy.push_back(one);
    }
  }
};

/// Progress of training at a daemon, for a bridge.
struct MachineProgress {
  std::vector<Version> versions;  ///< of each shard
  std::vector<Version> began;     ///< versions when the daemon started to serve
  uint32_t trainers = 0;          ///< joined
  bool over = false;              ///< all have left, and the daemon exits when the bridge has left
};

struct PingInfo {
  std::vector<double> seconds;  ///< round trip of each call, in order of completion
  double elapsed = 0;           ///< of all calls together, seconds
};

/// The work that a gradient results from. A value type.
struct GradientInfo {
  GradientInfo(uint32_t samplesOfOneStep) : samples(samplesOfOneStep) {}
  GradientInfo(uint32_t samplesOfAll, uint32_t steps, std::optional<uint32_t> fragment = {})
      : samples(samplesOfAll), localSteps(steps), fragment(fragment) {}

  uint32_t samples = 0;     ///< examples
  uint32_t localSteps = 0;  ///< taken by the trainer; 0: the gradient of one step
  /// Under LocalSteps::fragments, the only fragment of the push; empty: all.
  std::optional<uint32_t> fragment = {};
  /// Of the optimizer's step, where JoinInfo::takesHyperparameters; null: the daemon's.
  std::shared_ptr<const ModelHyperparameters> hyperparameters = {};
  /// Set by the client of several daemons: the number by which all of them know the round of this gradient,
  /// after which they name the version of the model that it makes. 0: there is one daemon, or a daemon's
  /// version is unknown.
  uint64_t leadRound = 0;
};

/// A call in progress. `wait()` blocks the calling thread and returns the answer, once; it may be called
/// again after a wait that ClientOptions::keepWaiting has ended (interrupted). `done()`: wait() would return
/// immediately, or start to recover an answer that was lost with its connection. `finished()`: nothing
/// of the call is in progress, and nothing will be until wait() is called. Destroying the object without
/// wait() lets the call finish in the background. May outlive the client, whose end is an error of the call.
/// Used by one thread at a time. The spans passed to the call must stay valid and unchanged
/// until it has finished.
template <class T>
class Pending {
 public:
  class Impl {
   public:
    virtual ~Impl() = default;
    virtual bool done() const = 0;
    virtual bool finished() const { return done(); }
    virtual Result<T> wait() = 0;
  };
  explicit Pending(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
  bool done() const { return impl_->done(); }
  bool finished() const { return impl_->finished(); }
  Result<T> wait() { return impl_->wait(); }

 private:
  std::unique_ptr<Impl> impl_;
};

/// A push that sends the final elements of its gradient while the rest is computed. Used by one thread at a
/// time. Destroying it before finish() gives up the push: nothing more is sent, and
/// the destructor waits for outstanding answers.
class PartialPush {
 public:
  virtual ~PartialPush() = default;

  /// Elements [begin, begin + count) of the gradient are final. Each element, padding included, is reported
  /// once, in any order. Waits only while the client reconnects.
  virtual void ready(uint64_t begin, uint64_t count) = 0;
  /// Ends the push once every element is reported, and returns its answer. Called once.
  virtual Pending<PushInfo> finish() = 0;
};

/// Notifications that a round, or the trainer's part of it, should end.
class Rounds {
 public:
  virtual ~Rounds() = default;

  /// Under LocalSteps::endsEarly or JoinInfo::allReduce: done when the trainer should end its local steps or
  /// its averaging group, with the reason. `version`, the first of PullInfo::versions of a pull: the one that
  /// the steps start from. A newer call ends the previous one. An answer that is lost, with its connection or
  /// because the daemon's policy has changed, is an error after which the caller asks again: this call is not
  /// recovered.
  virtual Pending<RoundDue> roundDue(Version version) = 0;
};

/// Exchanges of single fragments of a model.
class Fragments {
 public:
  virtual ~Fragments() = default;

  /// Under LocalSteps::fragments: pull() of one fragment's elements only, to their places in `destination`,
  /// which has the size of the whole arena. PullInfo::versions of other fragments' shards are 0.
  virtual Pending<PullInfo> pullFragment(ArenaValues destination, uint32_t fragment) = 0;
  /// roundDue() for the rounds of one fragment; `basis`: PullInfo::versions of the values that the local
  /// steps started from. When several daemons hold parts of the fragment, each with its own rounds, the first
  /// answer counts; call wait() when such a call is done(). Without LocalSteps::endsEarly only closed rounds
  /// are reported; ErrorCode::invalidArgument from a daemon that is too old for that. A newer call ends the
  /// previous one of the same fragment.
  virtual Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) = 0;
};

/// Groups of trainers that average their gradients.
class GradientAveraging {
 public:
  virtual ~GradientAveraging() = default;

  /// Under JoinInfo::allReduce: waits for the next averaging group with this trainer in it. `after`:
  /// generation of its previous group (0: none). `where`: host and port at which the other members reach this
  /// trainer; its rank is ignored.
  virtual Result<FormedGroup> formAveragingGroup(uint64_t after, const AveragingMember& where) = 0;
};

/// What a bridge learns of the training at its daemon.
class TrainingProgress {
 public:
  virtual ~TrainingProgress() = default;

  /// With ClientOptions::bridges, after join(): the progress of training. What such a client pushes is
  /// subtracted from the current parameters, w ← w − g, as one update of each shard. `settled`: answered once
  /// the current updates can no longer be lost.
  virtual Result<MachineProgress> progress(bool settled) = 0;
};

/// The state of the daemon's optimizer, for programs that save and restore it.
class StateExchange {
 public:
  virtual ~StateExchange() = default;

  /// After join(): the values and the optimizer's state, each shard's of one moment, unless its policy
  /// applies slices separately (hogwild) and others push meanwhile.
  virtual Result<OptimizerState> fetchState() = 0;
  /// After join(), before any trainer has pushed: replaces the values and the optimizer's state, and waits
  /// until that is durable. `state` has the values, and the states that the daemon's optimizer has, no
  /// others. Gradients computed from earlier values are dropped (PushOutcome::stale).
  /// ErrorCode::invalidArgument if the run has begun.
  virtual Status restoreState(const StateToRestore& state) = 0;
};

/// Assignment of samples to the steps of trainers.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  /// After join(): samples that the daemon assigns, so that every sample of every epoch is in one gradient,
  /// whatever the trainers' speeds and losses. A repeated request for a step returns the same samples. A
  /// request waits for the previous one, of another thread or whose wait was ended.
  virtual Result<AssignedSamples> takeSamples(const SamplesRequest& request) = 0;
};

/// What a trainer tells of its training, and what the daemon knows of others.
class Monitoring {
 public:
  virtual ~Monitoring() = default;

  /// Reports human-readable training values at `step` to the daemon: at most 16, each name of at most 64
  /// letters, digits, or . _ - /. After join(). Does not block: values that arrive while the previous report
  /// is unanswered are sent afterwards as one report, with the newest value of each name. Nothing is sent to
  /// a daemon that does not support reports. An Error refers to the values only.
  virtual Status report(Step step, std::span<const NamedValue> values) = 0;
  /// The ranks of the trainers whose push or pull currently waits for other trainers. Allowed after join() or
  /// observe().
  virtual Result<std::vector<Rank>> waiters() = 0;
};

/// A model's buffers: tensors of any dtype that no one trains, such as running statistics. The daemon keeps
/// them as they are, as the bytes of a .safetensors file.
class ModelBuffers {
 public:
  virtual ~ModelBuffers() = default;

  /// Replaces all buffers at once, after join() as rank 0; returns when that is as durable as a push.
  virtual Status setBuffers(std::vector<std::byte> file) = 0;
  /// The file that was set last; empty: there are no buffers. After join() or observe().
  virtual Result<std::vector<std::byte>> buffers() = 0;
};

/// What an operator asks of all daemons that serve the model, in the order of partitions. Each call needs a
/// role (docs/guides/access_control.md); without it the call fails (forbidden). Allowed at any time after
/// connect().
class Operations {
 public:
  virtual ~Operations() = default;

  /// The status of each daemon, as JSON; docs/reference/status.md lists the fields. Role reader.
  virtual Result<std::vector<std::string>> status() = 0;
  /// Changes one key, "optimizer.lr=0.05", of the configuration, until the next reload. Changes nothing
  /// unless every daemon accepts the change. Returns what has changed at each, human-readable. Role admin.
  virtual Result<std::vector<std::string>> set(const std::string& assignment) = 0;
  /// Makes each daemon take a checkpoint, and waits until they are complete. Returns their paths on the
  /// daemons' machines. Takes none unless every daemon answers. Role admin.
  virtual Result<std::vector<std::string>> checkpoint() = 0;
};

/// Required alignment, in bytes, of values and gradients.
inline constexpr size_t kValueAlignment = 8;

/// A trainer's connection to a daemon. Usable without LibTorch.
///
/// Values and gradients are flat float32 arrays in the order of `ModelLayout(model)` (`totalElements()` long;
/// padding elements are zero), aligned to kValueAlignment.
///
/// With ClientOptions::retryTimeout, a trainer whose connection broke, whose daemon stopped answering, or
/// which the daemon counted as lost joins again within the call that waits, resends unanswered pushes (the
/// daemon applies nothing twice) and continues; a reader observes again, in pull(). Returned errors are
/// final: isRetryable() tells whether the client could be restarted unchanged.
///
/// Thread-safe: any thread may make calls, and several calls may be in progress. While one joins, reconnects,
/// follows a move or leaves, others wait for it. Background threads do the input and output. Destroying the
/// client while other threads are within its calls ends these as interrupt() does, and waits for them. No
/// exception of the RPC library leaves this class.
class Client {
 public:
  virtual ~Client() = default;

  /// Connects and agrees on the protocol version; retries until the timeout while no daemon answers.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);

  /// Joins as a trainer and waits until the model has values. `initialValues` is called by a thread that
  /// makes a call, only when this trainer is the initializer: within join() of the first trainer, and later,
  /// within some wait(), when the daemon restarted without a model; it then returns the trainer's newest
  /// values. Kept until leave().
  virtual Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                                const std::function<ConstArenaValues()>& initialValues) = 0;

  /// Instead of join(): reads as a reader. An empty model matches any; JoinInfo::model is the daemon's. Fails
  /// with a codec of gradients (invalidArgument), and while the model has no values (notReady). When the
  /// model moves to other daemons, a pull and later calls continue there.
  virtual Result<JoinInfo> observe(const ModelSpec& model) = 0;

  /// After join(), while no call is in progress: from now on the spans passed to pull(), push() and
  /// beginPush() are in the memory of ClientOptions::cudaDevice, and all device work on them has completed
  /// before each call. The daemon and this process exchange values in the memory of the daemon's devices; if
  /// a daemon no longer supports that after a reconnect, values are copied through host memory. Initial
  /// values stay in host memory. Returns false and changes nothing where the daemon shares no such memory
  /// with this trainer.
  virtual bool useDeviceMemory() { return false; }

  /// Starts to fill `destination`, float32 or native, with the dense parameters and, unless `rows` is null,
  /// its rows with their values. With an empty destination and non-null `rows`, pulls the rows only.
  virtual Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows = nullptr) = 0;

  /// An empty batch for rows of the model's tables, after join() or observe().
  virtual RowBatch makeRowBatch() const { return RowBatch({}); }

  /// The parameters in the daemon's own memory, without a copy: they change while they are read, each element
  /// atomically. Valid until this object is destroyed, the client has reconnected, or it continues at other
  /// daemons after a move; the values no longer change once the daemon has exited. Empty where values travel
  /// in messages, while the daemon's policy forbids it, and for a reader between a move of the model and its
  /// next pull: callers must call view() again before each use.
  virtual std::span<const float> view() const { return {}; }

  /// Starts to push one gradient, float32 or native. `step` starts at 1 and rises with every push. `behind`:
  /// the number of samples, and of steps under a policy with local steps. `basis`: PullInfo::versions of the
  /// values that the gradient was computed from; missing shards count from version 0, which is
  /// dropped (stale) after a trainer has restored a state. Several pushes may be
  /// in progress: they reach each shard in the order of these calls. `rows`: with the gradients of its rows;
  /// null: the gradient has none. With an empty gradient, under JoinInfo::allReduce, only rows are pushed.
  /// Over several connections a push is sent when the previous ones are answered and some thread is within a
  /// call.
  virtual Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                                 const std::vector<Version>& basis, const RowBatch* rows = nullptr) = 0;

  /// Starts to push a gradient that is still being computed; arguments as for push(). Pushes that start later
  /// are sent after this one. `rows`: its gradients are final when finish() is called; null: the gradient has
  /// none.
  virtual std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                                 const std::vector<Version>& basis,
                                                 const RowBatch* rows = nullptr) = 0;

  /// Makes `calls` empty calls, 1 to a million, `outstanding` of them unanswered at a time, 1 to 65536, and
  /// waits for all. Allowed at any time after connect().
  virtual Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) = 0;

  /// Says goodbye: the daemon counts this trainer as left. No call may follow.
  virtual Status leave() = 0;

  /// Says goodbye while calls are in progress: they and all later ones fail (interrupted) once the daemon has
  /// answered the goodbye, or after two seconds. Parts of a gradient that have arrived may still be applied.
  /// Does not block. Callable from any thread while the client exists.
  virtual void interrupt() = 0;

  /// Bytes of parameters pulled and of gradients pushed so far, as transmitted.
  virtual uint64_t bytesPulled() const = 0;
  virtual uint64_t bytesPushed() const = 0;

  // The calls of interfaces that not every client has; without the interface they fail (notReady), except
  // report(), which only checks the values.
  Pending<RoundDue> roundDue(Version version);
  Pending<PullInfo> pullFragment(ArenaValues destination, uint32_t fragment);
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment);
  Result<FormedGroup> formAveragingGroup(uint64_t after, const AveragingMember& where);
  Result<MachineProgress> progress(bool settled = false);
  Result<OptimizerState> fetchState();
  Status restoreState(const StateToRestore& state);
  Result<AssignedSamples> takeSamples(const SamplesRequest& request);
  Status report(Step step, std::span<const NamedValue> values);
  Result<std::vector<Rank>> waiters();
  Status setBuffers(std::vector<std::byte> file);
  Result<std::vector<std::byte>> buffers();
  Result<std::vector<std::string>> status();
  Result<std::vector<std::string>> set(const std::string& assignment);
  Result<std::vector<std::string>> checkpoint();

 protected:
  // The interfaces; null: this client does not have it. A client that forwards calls to another one has all.
  virtual Rounds* rounds() { return nullptr; }
  virtual Fragments* fragments() { return nullptr; }
  virtual GradientAveraging* gradientAveraging() { return nullptr; }
  virtual TrainingProgress* trainingProgress() { return nullptr; }
  virtual StateExchange* stateExchange() { return nullptr; }
  virtual SampleSource* sampleSource() { return nullptr; }
  virtual Monitoring* monitoring() { return nullptr; }
  virtual ModelBuffers* modelBuffers() { return nullptr; }
  virtual Operations* operations() { return nullptr; }
};

}  // namespace psd

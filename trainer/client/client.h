#pragma once

#include <algorithm>
#include <chrono>
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
#include "common/types/ids.h"
#include "common/types/local_steps.h"
#include "common/types/model_spec.h"
#include "common/types/named_value.h"
#include "common/types/push_outcome.h"
#include "common/types/samples.h"
#include "trainer/client/row_batch.h"

namespace psd {

/// How values travel.
enum class Transport {
  automatic,  ///< shared memory where the daemon offers it, else messages
  rpc,        ///< messages
  shm,        ///< shared memory; joining fails, naming why, where the daemon offers none
};

/// Something that keeps a trainer from going on, or its end.
struct ClientEvent {
  enum class What {
    waits,  ///< the trainer waits for something that has not come for a while
    broke,  ///< the connection to the daemon broke
    back,   ///< the trainer is back after its connection broke
  };
  What what = What::waits;
  std::string line;  ///< for people
};

/// How to reach the daemon.
struct ClientOptions {
  /// "tcp://host:port", "tls://host:port" or "unix:///path"; the first that answers is used.
  std::vector<std::string> servers;
  /// What tells the daemon who this is; empty: nothing. A secret. See readCredentials().
  std::string token;
  TlsFiles tls;  ///< for servers at tls://
  /// How long to keep trying while nobody answers, in all.
  std::chrono::milliseconds connectTimeout{30'000};
  /// How long nothing at all may come from the daemon before it counts as gone; for a trainer that is in, the
  /// daemon's lease says so instead.
  std::chrono::milliseconds silence{10'000};
  uint64_t chunkBytes = 1u << 20;  ///< of a slice on the wire, at most; docs/performance.md measures sizes
  /// Of a slice that travels in memory of CUDA devices, at most; no more than the daemon takes, and a quarter
  /// of its ring. Two processes take turns at a device, and each slice costs several changes of turn: large
  /// ones are faster.
  uint64_t deviceChunkBytes = 32u << 20;
  /// Slices of that size in flight at most, per connection; more of smaller ones. 0: 4, and over a network as
  /// many as fill the way to the daemon, up to 64 and 32 MiB; but for rows of tables, pushes with rows and
  /// initial values, of which 4 stay in flight.
  uint32_t window = 0;
  /// Connections of a trainer, each with an I/O thread of its own; no more than the daemon has shards, and
  /// one where values travel through memory shared with it. All of a shard goes over one of them.
  uint32_t connections = 1;
  /// How long the I/O threads stay awake after each message and look for the next, before they sleep: answers
  /// are seen sooner, at the cost of a core's idle time.
  std::chrono::microseconds spin{0};
  Transport transport = Transport::automatic;
  /// A CUDA device of this process, the memory of which useDeviceMemory() is about; −1: none. Where the
  /// daemon shares memory of its devices, no ring in host memory is opened beside that.
  int cudaDevice = -1;
  /// How gradients are to travel, as makeCodec() reads it; empty: as the daemon says. What a codec leaves out
  /// of one push is added to the next.
  std::string codec;
  /// How parameters are to travel in messages to a trainer; empty: as the daemon says.
  std::string pullCodec;
  /// Whether a trainer that comes back goes on where the daemon has lost the rows of the model's embedding
  /// tables, which no trainer can bring: they are then as they begin. Else its calls fail (unavailable).
  bool goOnWithoutRows = false;
  /// How long a client whose connection broke tries to come back; 0: the first fault is final.
  std::chrono::milliseconds retryTimeout{0};
  /// The number by which daemons know this trainer's process, for who goes on where another client of the
  /// same trainer was: the daemon applies no step twice. 0: one is drawn.
  uint64_t incarnation = 0;
  /// Whether another client of the same trainer goes on where this one ends. Then the daemons hear a goodbye
  /// by leave() alone, after which they forget which steps they have of the incarnation. Where a fault is
  /// final, the trainer is in at those that live until this object goes; then, and after interrupt(), they
  /// see a connection that broke.
  bool resumable = false;
  /// For who goes on where another client of the same trainer has pushed rows of embedding tables:
  /// JoinInfo::daemons of that client. A join at one that is there anew without them fails (modelMismatch).
  std::vector<uint64_t> rowsAt;
  /// Whether this trainer averages gradients with others where the daemon's policy is that
  /// (JoinInfo::allReduce, formGroup()); who does not is refused there.
  bool averages = false;
  /// Whether this is the bridge of the daemon's machine, and no trainer: see Client::progress(). Its
  /// Membership means nothing.
  bool bridges = false;
  /// Why this trainer cannot go on at other daemons, for people: the model does not move while it is in.
  /// Empty: it can.
  std::string cannotMove;
  /// Called, on the client's thread, with what keeps the client; null: nobody is told.
  std::function<void(const ClientEvent&)> onEvent;
  /// Called, on the client's thread, where it hears that the model has moved: from the daemon at the first
  /// addresses, to that at the second, before it connects there. null: nobody is told.
  std::function<void(const std::vector<std::string>& from, const std::vector<std::string>& to)> onMove;
};

/// Who this trainer is.
struct Membership {
  Rank rank;
  uint32_t worldSize = 1;  ///< trainers only; 0: as the daemon says
  bool anyRank = false;    ///< takes the lowest rank that is free, instead of `rank`
};

/// What the daemon said when the trainer joined.
struct JoinInfo {
  bool broughtInitialValues = false;  ///< this trainer's values became the model's
  std::string policy;                 ///< for people; of several groups "fc*: locked, others: hogwild"
  std::string device;                 ///< where the shards are, for people
  uint32_t shardCount = 0;
  std::string serverVersion;
  uint32_t rowShardCount = 0;  ///< parts that the embedding tables are cut into
  /// How parameters come: "shm", "rpc", or "cuda" where useDeviceMemory() may be.
  std::string pullTransport = "rpc";
  std::string pushTransport = "rpc";  ///< how gradients go
  std::string rowTransport;           ///< how rows go, both ways; empty: the model has no tables
  std::string codec = "none";         ///< of pushes, with its options
  std::string pullCodec = "none";     ///< of pulls; "none" through shared memory, which needs none
  LocalSteps local;                   ///< whether trainers take steps by themselves, and what they push then
  /// In order, of all daemons; under LocalSteps::fragments `group` is the fragment.
  std::vector<ShardRange> shards;
  AllReduceTerms allReduce;       ///< how trainers average gradients; without a timeout they do not
  ModelSpec model;                ///< that the daemon serves; of several daemons all of it
  uint64_t daemon = 0;            ///< random number of the daemon's process; 0 where it was observed
  std::vector<uint64_t> daemons;  ///< that of each, of several daemons; empty where they were observed
  Rank rank;                      ///< that the trainer has
  uint32_t worldSize = 0;         ///< ranks are below it
  uint32_t connections = 1;       ///< in use
};

/// The larger of the two in each place.
inline void addVersions(std::vector<Version>& sum, const std::vector<Version>& part) {
  sum.resize(std::max(sum.size(), part.size()));
  for (size_t i = 0; i < part.size(); i++) sum[i] = std::max(sum[i], part[i]);
}

struct PullInfo {
  /// Per shard, then per row shard, the version that was read; the oldest where it changed.
  std::vector<Version> versions;
  double seconds = 0;      ///< from the call to the last byte
  uint64_t bytes = 0;      ///< of values, as they came
  uint64_t knownRows = 0;  ///< of tables that some push has touched, among those pulled

  /// Adds what another part of the same pull came to.
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

/// What a trainer that asks for samples gets: places [begin, begin + count) of the epoch's order.
struct DealtSamples {
  enum class What { range, nothingNow, finished };
  What what = What::nothingNow;
  uint64_t epoch = 0;  ///< from 0
  uint64_t begin = 0;
  uint32_t count = 0;
  /// With `nominal`: where the policy applies every gradient by itself, in order and not adjacent. There the
  /// trainer pushes count / nominal times its gradient; elsewhere the policy sees to its samples.
  std::vector<ElementRange> unweighted;
  std::vector<uint32_t> unweightedTables;  ///< likewise the tables whose rows' gradients the trainer weighs
  bool mixed = false;  ///< some groups of the daemon's configuration see to their samples, others do not
};

/// Which process of a daemon, and in which time of its pair (docs/standby.md). A value type.
struct Answerer {
  uint64_t daemon = 0;  ///< random number of the process, as JoinInfo::daemon
  uint64_t epoch = 0;  ///< in which it was the primary when this trainer joined it; 0: it can have no standby
  bool operator==(const Answerer&) const = default;
};

struct PushInfo {
  std::vector<Version> versions;  ///< per shard, then per row shard, the newest that an answer told of
  /// Largest over the shards of: version when applied − version the gradient was computed from.
  uint64_t staleness = 0;
  double seconds = 0;
  PushOutcome outcome = PushOutcome::applied;  ///< stale and late: of some shards at least; never received
  uint64_t bytes = 0;                          ///< of gradient, as they travelled
  /// Who answered, of several daemons each; of a push that was sent again, the last time.
  std::vector<Answerer> answeredBy = {};

  /// Adds what another part of the same push came to.
  void add(const PushInfo& part) {
    addVersions(versions, part.versions);
    staleness = std::max(staleness, part.staleness);
    seconds = std::max(seconds, part.seconds);
    outcome = std::max(outcome, part.outcome);
    bytes += part.bytes;
    for (const Answerer& one : part.answeredBy) {
      if (std::ranges::find(answeredBy, one) == answeredBy.end()) answeredBy.push_back(one);
    }
  }
};

/// How far training is at a daemon, for a bridge.
struct MachineProgress {
  std::vector<Version> versions;  ///< of each shard
  std::vector<Version> began;     ///< what they were when the daemon began to serve
  uint32_t trainers = 0;          ///< that are in
  bool over = false;              ///< all have come and gone, and the daemon ends when the bridge has left
};

struct PingInfo {
  std::vector<double> seconds;  ///< round trip of each call, in the order of the answers
  double elapsed = 0;           ///< of all calls together, seconds
};

/// What is behind a gradient. A value type.
struct Behind {
  Behind(uint32_t samplesOfOneStep) : samples(samplesOfOneStep) {}
  Behind(uint32_t samplesOfAll, uint32_t steps, std::optional<uint32_t> fragment = {})
      : samples(samplesOfAll), localSteps(steps), fragment(fragment) {}

  uint32_t samples = 0;     ///< examples
  uint32_t localSteps = 0;  ///< that the trainer took by itself; 0: it is the gradient of one step
  /// Under LocalSteps::fragments, of which fragment the push is alone; nothing: of all.
  std::optional<uint32_t> fragment = {};
};

/// A call under way. `wait()` blocks the calling thread and may be called once; `done()` tells whether it
/// would return at once, or begin to bring back an answer that was lost with its connection. `finished()`:
/// nothing of the call is under way any more, and nothing will be, without a call of wait(). An object that
/// is dropped without wait() lets the call finish in the background. The spans given to the call stay valid
/// and unchanged until the call has finished.
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

/// A push that sends what is final of its gradient while the rest is being computed. Used by the client's
/// thread; the client outlives it. One that is dropped before finish() gives the push up: nothing more is
/// sent, and the destructor waits for the answers to what was.
class PartialPush {
 public:
  virtual ~PartialPush() = default;

  /// Elements [begin, begin + count) of the gradient are final. Each one, padding included, is reported once;
  /// in any order. Does not wait for anything.
  virtual void ready(uint64_t begin, uint64_t count) = 0;
  /// Ends the push, once, when every element is reported; gives its answer.
  virtual Pending<PushInfo> finish() = 0;
};

/// Bytes of which the addresses of values and gradients are multiples.
inline constexpr size_t kValueAlignment = 8;

/// A trainer's connection to a daemon. Usable without LibTorch.
///
/// Values and gradients are flat float32 arrays in the order of `ModelLayout(model)`
/// (`totalElements()` long; padding elements are zero). They begin at a multiple of kValueAlignment.
///
/// With ClientOptions::retryTimeout, a trainer whose connection broke, whose daemon is silent, or which the
/// daemon gave up joins again within whatever call waits, resends unanswered pushes (the daemon
/// applies nothing twice) and continues; a reader observes again, in pull(). Returned errors are final:
/// isRetryable() tells whether the client could be started again as it is.
///
/// Owned by one thread, which makes all calls; background threads do the input and output. No
/// exception of the RPC library leaves this class.
class Client {
 public:
  virtual ~Client() = default;

  /// Connects and agrees on the protocol version; retries until the timeout while nobody answers.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);

  /// Joins as a trainer and waits until the model has values. `initialValues` is called on the client's
  /// thread only when this trainer must bring them: in here when it is the first, and later, in some wait(),
  /// when the daemon came back without a model; then the newest values that the trainer has are what to
  /// bring. Kept until leave().
  virtual Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                                const std::function<std::span<const float>()>& initialValues) = 0;

  /// Instead of join: reads float32 without being a trainer. Fails with a codec (invalidArgument), and while
  /// the model has no values (notReady). Where it moves to other daemons, a pull and later calls go on there.
  virtual Result<JoinInfo> observe(const ModelSpec& model) = 0;

  /// After join(), while no call is under way: the spans given to pull(), push() and beginPush() are from now
  /// on in the memory of ClientOptions::cudaDevice, whose work on them has ended by then. The daemon and this
  /// process exchange values in the memory of the daemon's devices; should a daemon not do so any more after
  /// a connection broke, they go by way of host memory. Initial values stay in host memory. False, and
  /// nothing changes, where the daemon shares no such memory with this trainer.
  virtual bool useDeviceMemory() { return false; }

  /// Starts to fill `destination` with the dense parameters, and the rows of `rows`, unless that is null,
  /// with their values. With an empty destination and rows only these are pulled.
  virtual Pending<PullInfo> pull(std::span<float> destination, RowBatch* rows = nullptr) = 0;

  /// An empty batch of rows of the model's tables, after join() or observe().
  virtual RowBatch makeRowBatch() const { return RowBatch({}); }

  /// The parameters in the daemon's own memory, without a copy: they change while they are read, each element
  /// whole. Valid as long as this object, or until the client is back after its connection broke, or goes on
  /// at other daemons, to which the model has moved; no longer changing once the daemon is gone. Empty where
  /// values travel in messages, for who observes from when the model has moved until the next pull, and while
  /// the daemon goes by a policy that forbids it: who keeps the span asks again before each use.
  virtual std::span<const float> view() const { return {}; }

  /// The parameters as view() gives them, to be written as well; empty unless the daemon's configuration says
  /// shm_writable. What is written is in the model at once: no policy, optimizer or version knows of it.
  virtual std::span<float> writableView() const { return {}; }

  /// Starts to push one gradient. `step` rises with every push, from 1. `behind`: the number of examples, and
  /// of steps under a policy of local steps. `basis` is what PullInfo::versions says of the values that it
  /// was computed from; shards that it leaves out count from version 0. Pushes may be under way together:
  /// they reach each shard in the order of these calls. `rows`: with the gradients of its rows; null: the
  /// gradient has none. With an empty gradient, under JoinInfo::allReduce, only rows are pushed. Over several
  /// connections one is sent when those before it are answered and the client's thread is in some call.
  virtual Pending<PushInfo> push(Step step, std::span<const float> gradient, Behind behind,
                                 const std::vector<Version>& basis, const RowBatch* rows = nullptr) = 0;

  /// Starts to push a gradient that is still being computed, with arguments as for push(). Pushes that start
  /// later are sent after this one. `rows`: of which the gradients are final when finish() is called; null:
  /// the gradient has none of rows.
  virtual std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, Behind behind,
                                                 const std::vector<Version>& basis,
                                                 const RowBatch* rows = nullptr) = 0;

  /// Under LocalSteps::endsEarly: is done when the round of the parameters of which a pull said `version`
  /// (the first of PullInfo::versions) is about to close without this trainer, or has closed. A newer call
  /// ends the one before. An answer that is lost, with its connection or because the daemon has another
  /// policy now, is an error, after which to ask again: nothing is brought back for this call.
  virtual Pending<RoundDue> roundDue(Version) = 0;

  /// Under LocalSteps::fragments: pull() of the elements of one fragment alone, into their places in
  /// `destination`, which is of all. PullInfo::versions of other fragments' shards are 0.
  virtual Pending<PullInfo> pullFragment(std::span<float> destination, uint32_t fragment);
  /// roundDue() of the rounds of one fragment; `basis` is what PullInfo::versions says of the values that the
  /// steps began with. Of several daemons that have a part of the fragment, each in rounds of its own, the
  /// first counts that tells anything; such a call is waited for when it is done(). Without
  /// LocalSteps::endsEarly it tells of closed rounds alone; ErrorCode::invalidArgument of a daemon that is
  /// too old for that. A newer call ends the one before of the same fragment.
  virtual Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment);

  /// Under JoinInfo::allReduce: waits for the next group of trainers that average gradients, with this one in
  /// it, which was in the group of generation `after` (0: in none). `where`: at which host and port the
  /// others reach it; its rank means nothing.
  virtual Result<FormedGroup> formGroup(uint64_t /*after*/, const AveragingMember& /*where*/) {
    return Error{ErrorCode::notReady, "this client forms no groups"};
  }

  /// With ClientOptions::bridges, after join(): how far training is. What such a client pushes is subtracted
  /// from the parameters as it is, w ← w − g, as one update of each shard.
  /// `settled`: answered once the updates that there are can no longer be lost.
  virtual Result<MachineProgress> progress(bool /*settled*/ = false) {
    return Error{ErrorCode::notReady, "this client does not bridge"};
  }

  /// Samples that the daemon deals, so that every one of every epoch is in one gradient, however fast
  /// trainers are and though some die. After join(). Asked again for a
  /// step, the daemon gives the same samples.
  virtual Result<DealtSamples> takeSamples(const SamplesRequest&) {
    return Error{ErrorCode::notReady, "this client deals no samples"};
  }

  /// Tells the daemon, for people, how training goes at `step`: at most 16 values, named by 64 letters,
  /// digits, or . _ - / at most. After join(). Does not wait: what comes while the report before is not
  /// answered is sent then, as one report, with the newest value of each name. Where the daemon does not know
  /// reports, nothing is sent. An Error is of the values alone.
  virtual Status report(Step, std::span<const NamedValue> values) { return checkReported(values); }

  /// The ranks of the trainers of which a push or pull waits for other trainers, as things are. Allowed after
  /// join() or observe().
  virtual Result<std::vector<Rank>> waiters() {
    return Error{ErrorCode::notReady, "this client does not know who waits"};
  }

  /// Makes `calls` empty calls, 1 to a million, `outstanding` of them unanswered at a time, 1 to 65536, and
  /// waits for all. Allowed at any time after connect().
  virtual Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) = 0;

  /// Says goodbye: the daemon counts this trainer as done. No call may follow.
  virtual Status leave() = 0;

  /// Says goodbye in the midst of calls: they and all later ones fail (interrupted) as soon as the daemon has
  /// heard of it, or has not in two seconds. What it has of a gradient may still be applied. Does not wait.
  /// From any thread, while the client lives.
  virtual void interrupt() = 0;

  /// Bytes of parameters pulled and gradients pushed so far, as they travelled.
  virtual uint64_t bytesPulled() const = 0;
  virtual uint64_t bytesPushed() const = 0;
};

}  // namespace psd

#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "trainer/client/api/client.h"
#include "trainer/client/attempts.h"
#include "trainer/client/calls.h"
#include "trainer/client/fault_streak.h"
#include "trainer/client/links.h"
#include "trainer/client/movable_client.h"
#include "trainer/client/notices.h"
#include "trainer/client/session.h"

namespace psd {

/// A Client of one daemon: makes calls over the session's connections, and recovers the session when they
/// break. Used with the client's lock held, which calls leave while they wait.
class RpcClient final : public MovableClient,
                        private Rounds,
                        private Fragments,
                        private GradientAveraging,
                        private TrainingProgress,
                        private StateExchange,
                        private SampleSource,
                        private Monitoring,
                        private ModelBuffers,
                        private Operations,
                        private CallHost {
 public:
  /// `options.connectTimeout` is positive.
  RpcClient(const ClientOptions& options, std::unique_ptr<Link> first, ClientLock& lock);

  /// Connects; retries within `timeout` while no daemon answers.
  Status connect(const ConnectTimeout& timeout);
  /// Of the daemon that it is connected to.
  const DaemonIdentity& identity() const { return session_.identity(); }
  const std::string& server() const { return session_.server(); }
  const ModelRules& rules() const { return session_.rules(); }
  /// Of the last join(), even if incomplete, or observe().
  const JoinInfo& info() const { return session_.info(); }
  bool pendingMove() const override { return session_.pendingMove().move() != 0; }
  DaemonAddresses movedTo(std::chrono::milliseconds within) const override {
    if (!movedTo_.empty()) return movedTo_;
    const auto notification = session_.moveNotification();
    if (!notification) return {};
    return within.count() == 0 ? notification->within(within)
                               : lock_.outside([&] { return notification->within(within); });
  }
  /// A reader does not reconnect here while `elsewhere` returns true: another daemon may have reported that
  /// the model has moved.
  void setElsewhereCheck(std::function<bool()> elsewhere) { elsewhereCheck_ = std::move(elsewhere); }
  /// Whether movedTo() is final.
  bool isMoveOutcomeFinal() const {
    return session_.moveNotification() == nullptr || session_.moveNotification()->over();
  }
  /// startQuiesce() and awaitMove() in one, for a single daemon.
  Result<DaemonAddresses> quiesce() override {
    const uint64_t move = session_.pendingMove().move();
    const uint32_t daemons = session_.pendingMove().daemons();
    return awaitMove(startQuiesce(move, daemons));
  }
  /// A quiesce() call in progress, and the number of the channel it was sent on.
  struct QuiesceCall {
    uint64_t connection = 0;
    Link::Future<DaemonAddresses> answer;
  };
  /// Continues the call for this move that is in progress, if there is one.
  QuiesceCall startQuiesce(uint64_t move, uint32_t daemons);
  /// Waits for the outcome; reconnects if the connection broke.
  Result<DaemonAddresses> awaitMove(const QuiesceCall& call);
  MovedFrom movedFrom() const override { return {move_, session_.daemon(), held_}; }
  uint64_t pendingMoveNumber() const { return session_.pendingMove().move(); }
  uint32_t pendingMoveTargets() const { return session_.pendingMove().daemons(); }
  void setMovedFrom(const MovedFrom& before) override {
    session_.setMovedFrom(before);
    held_ = before.held;
  }
  bool stayOnDevice() override {
    onDevice_ = options_.cudaDevice >= 0;
    return onDevice_;
  }
  /// From now on `values` replaces `initialValues` of join().
  void setInitialValues(std::function<ConstArenaValues()> values) {
    session_.setInitialValues(std::move(values));
  }

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  bool useDeviceMemory() override;
  RowBatch makeRowBatch() const override { return session_.makeRowBatch(); }
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows = nullptr) override {
    return pull(destination, callers(rows));
  }
  /// Pulls parameters and, if given, `rows`, which the call keeps alive until it has finished.
  Pending<PullInfo> pull(ArenaValues destination, std::shared_ptr<RowBatch> rows);
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override {
    return beginPush(step, gradient, behind, basis, callers(rows));
  }
  /// Starts a push in parts; the call keeps `rows` alive until it has finished.
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         std::shared_ptr<const RowBatch> rows);
  Pending<RoundDue> roundDue(Version version) override { return dueOf(version, 0); }
  Pending<PullInfo> pullFragment(ArenaValues destination, uint32_t fragment) override;
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) override;
  Result<FormedGroup> formAveragingGroup(uint64_t after, const AveragingMember& where) override;
  Result<MachineProgress> progress(bool settled) override;
  Result<OptimizerState> fetchState() override;
  Status restoreState(const StateToRestore& state) override;
  /// restoreState() in two steps, without recovery from a broken connection; see state_calls.h.
  Result<std::set<std::string>> sendState(const StateToRestore& state);
  Status applyState(const std::vector<uint64_t>& steps);
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override;
  Status report(Step step, std::span<const NamedValue> values) override;
  Result<std::vector<Rank>> waiters() override;
  Status setBuffers(std::vector<std::byte> file) override;
  Result<std::vector<std::byte>> buffers() override;
  Result<std::vector<std::string>> status() override;
  Result<std::vector<std::string>> set(const std::string& assignment) override;
  Result<std::vector<std::string>> checkpoint() override;
  /// Dry run of set().
  Status checkChange(const std::string& assignment);
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override;
  void interrupt() override;
  std::span<const float> view() const override {
    return readable() ? readable()->values() : std::span<const float>();
  }
  uint64_t bytesPulled() const override { return bytesPulled_; }
  uint64_t bytesPushed() const override { return bytesPushed_; }

 private:
  Rounds* rounds() override { return this; }
  Fragments* fragments() override { return this; }
  GradientAveraging* gradientAveraging() override { return this; }
  TrainingProgress* trainingProgress() override { return this; }
  StateExchange* stateExchange() override { return this; }
  SampleSource* sampleSource() override { return this; }
  Monitoring* monitoring() override { return this; }
  ModelBuffers* modelBuffers() override { return this; }
  Operations* operations() override { return this; }

  /// Wraps rows that the caller owns.
  template <class Batch>
  static std::shared_ptr<Batch> callers(Batch* rows) {
    return {std::shared_ptr<void>(), rows};
  }
  const SharedModel* readable() const {
    const SharedModel* const shared = links_.sharedModel().get();
    return shared && shared->readable() ? shared : nullptr;
  }

  /// A request for samples, and the number of the channel it was sent on.
  struct SamplesCall {
    Step step;
    uint64_t connection = 0;
    Link::Future<AssignedSamples> answer;
  };
  /// The answer of an operator's call. Reconnects if the connection broke; before join() and
  /// observe() tries the next server if this one is a standby that cannot answer.
  Result<std::vector<std::string>> ask(
      const std::function<kj::Promise<Result<std::string>>(DaemonConnection&)>& work);
  /// Whether the connection in use has ended.
  bool hasEnded() const;
  /// Whether this client has neither joined nor observed.
  bool onlyConnects() const { return !session_.hasTrainer() && !session_.reads(); }
  /// Makes a call that the daemon allows one of, after that of another thread. `isCalling`: whether one is
  /// made.
  template <class Call>
  auto oneAtATime(bool& isCalling, const Call& call) -> decltype(call());
  /// Waits for samples_. If the wait is ended, the call stays.
  Result<AssignedSamples> awaitSamples();
  /// takeSamples(), by one thread at a time.
  Result<AssignedSamples> takeSamplesAlone(const SamplesRequest& request);

  /// `version` is that of the fragment's first shard.
  Pending<RoundDue> dueOf(Version version, uint32_t fragment);

  CallHost& host() { return *this; }
  ClientLock& lock() override { return lock_; }
  Status awaitOldest() override;
  bool ended() const override { return gaveUp_ || interrupted_; }
  void count(const PullInfo& info) override {
    faults_.answered();
    bytesPulled_ += info.bytes;
    if (info.knownRows > 0) session_.recordRows();
  }
  void count(const PushInfo& info, bool rows) override {
    faults_.answered();
    bytesPushed_ += info.bytes;
    if (rows) session_.recordRows();
  }
  bool mayRecover(const Error& error) const override;
  Status recover(uint64_t broken, const Error& cause) override;
  /// Forgets settled pushes and sends those that may be sent now. Over one connection all may. Over several,
  /// of pushes that share shards one at a time: a later step drops what is unfinished of the previous one,
  /// and connections are not synchronized.
  void sendDue() override;
  void reportWait(const std::string& what) override { notices_.reportWait(what); }

  /// Joins or observes again, if the client has before, within `timeout`.
  Status rejoin(std::chrono::milliseconds timeout);
  /// Whether a reader knows that the model is served elsewhere.
  bool servedByOtherDaemon() const;
  /// Reconnects and joins or observes again, until `deadline`.
  Status reconnect(const Error& cause, std::chrono::steady_clock::time_point deadline);
  /// After a join whose wait was ended: ends the connections, over which it may continue.
  void failIfEnded(const Error& error);
  /// Resends the unanswered pushes. Returns their number.
  size_t resendPushes();
  void forgetSettledPushes();
  const ClientOptions options_;
  ClientLock& lock_;
  Links links_;
  Notices notices_;
  Session session_;
  FaultStreak faults_;
  bool gaveUp_ = false;      // recover() failed
  bool recovering_ = false;  // recover() has not completed, or its wait was ended
  bool onDevice_ = false;    // see useDeviceMemory()
  Link& interruptible_;      // the first, for interrupt()
  std::atomic<bool> interrupted_ = false;
  std::function<bool()> elsewhereCheck_;         // null: only what this client knows counts
  std::list<std::shared_ptr<PushCall>> pushes_;  // pushes that may be unanswered, oldest first
  std::map<Step, HeldSamples> held_;             // assigned for pushes that are unanswered or yet to come
  uint64_t move_ = 0;                            // that the trainer quiesced for
  std::optional<QuiesceCall> quiesce_;           // for that move
  std::optional<SamplesCall> samples_;           // unanswered
  bool isTakingSamples_ = false;                 // some thread waits for samples_
  bool isReadingStatus_ = false;                 // some thread is within status()
  DaemonAddresses movedTo_;                      // as reported by the daemon that this client reconnected to
  uint64_t bytesPulled_ = 0;
  uint64_t bytesPushed_ = 0;
};

}  // namespace psd

#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/client/client_lock.h"
#include "trainer/client/movable_client.h"
#include "trainer/client/tracked_call.h"

namespace psd {

/// The Client of a model that may move: wraps a client of the daemons that serve it, and replaces it after a
/// move. A trainer changes over at the start of a step: in a pull, a request for samples, or a push without a
/// preceding pull. A reader changes over in any call after the move, or in a pull during which it happened.
/// Thread-safe.
class MovingClient final : public Client,
                           private Rounds,
                           private Fragments,
                           private GradientAveraging,
                           private TrainingProgress,
                           private StateExchange,
                           private SampleSource,
                           private Monitoring,
                           private ModelBuffers,
                           private Operations {
 public:
  /// Returns a connected client of the daemons at `servers`, within `timeout` for each.
  using Connect = std::function<Result<std::unique_ptr<MovableClient>>(
      const std::vector<std::string>& servers, std::chrono::milliseconds timeout)>;

  /// `lock`: that of the clients that it wraps, which are called with the lock held. `connect` is called
  /// likewise. `patience`: how long it tries to reach other daemons. `onEvent` may be null.
  MovingClient(std::shared_ptr<ClientLock> lock, std::unique_ptr<MovableClient> first, Connect connect,
               std::chrono::milliseconds patience, std::function<void(const ClientEvent&)> onEvent)
      : lock_(std::move(lock)),
        inner_(std::move(first)),
        connect_(std::move(connect)),
        patience_(patience),
        onEvent_(std::move(onEvent)) {}
  ~MovingClient() override;

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<ConstArenaValues()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  bool useDeviceMemory() override;
  RowBatch makeRowBatch() const override;
  Pending<PullInfo> pull(ArenaValues destination, RowBatch* rows = nullptr) override;
  Pending<PushInfo> push(Step step, ConstArenaValues gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, ConstArenaValues gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override;
  Pending<RoundDue> roundDue(Version version) override;
  // Trainers that make the next three calls cannot move.
  Pending<PullInfo> pullFragment(ArenaValues destination, uint32_t fragment) override;
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) override;
  Result<FormedGroup> formAveragingGroup(uint64_t after, const AveragingMember& where) override;
  Result<MachineProgress> progress(bool settled) override;
  Result<OptimizerState> fetchState() override;
  Status restoreState(const StateToRestore& state) override;
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override;
  Status report(Step step, std::span<const NamedValue> values) override;
  Result<std::vector<Rank>> waiters() override;
  Status setBuffers(std::vector<std::byte> file) override;
  Result<std::vector<std::byte>> buffers() override;
  Result<std::vector<std::string>> status() override;
  Result<std::vector<std::string>> set(const std::string& assignment) override;
  Result<std::vector<std::string>> checkpoint() override;
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override;
  Status leave() override;
  void interrupt() override;
  /// For a reader, empty between a move of the model and the call that follows it.
  std::span<const float> view() const override;
  uint64_t bytesPulled() const override;
  uint64_t bytesPushed() const override;

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
  /// Returns `call(client)` for the client of the daemons that serve the model now.
  template <class Call>
  auto askThere(const Call& call) -> decltype(call(std::declval<Client&>()));

  /// Arguments of the trainer's join().
  struct Joined {
    Membership membership;
    ModelSpec model;
    std::function<ConstArenaValues()> initialValues;
  };
  /// A move that a trainer has begun to follow.
  struct Move {
    DaemonAddresses places;
    bool connected = false;  // inner_ is the client of these daemons
  };
  class Partial;
  class ObservedPull;

  /// Start of a step, where the model may move. An Error: it did, and this trainer could not follow.
  Status beginStep();
  /// For a reader, after a call failed with `why`, which was made after `moves` moves: whether to repeat the
  /// call at other daemons. An Error: the wait was ended.
  Result<bool> shouldRetryElsewhere(const Error& why, uint64_t moves);
  /// Waits for calls in progress.
  Status settleCalls();
  /// A pull from the current daemons, and what follows its answer.
  struct StartedPull {
    Pending<PullInfo> call;
    std::function<void(const Result<PullInfo>&)> after;
  };
  StartedPull startPull(ArenaValues destination, RowBatch* rows);
  /// If the wait is ended, the next step continues the move.
  Status moveTo(const DaemonAddresses& places);
  Status joinAt(const DaemonAddresses& places);
  Status observeAt(const DaemonAddresses& places);
  /// Until change(), interrupt() applies to this client too; null: to none.
  void expect(MovableClient* next);
  /// From now on all calls go to `next`. Those of the previous client have ended.
  void change(std::unique_ptr<MovableClient> next);
  Result<std::unique_ptr<MovableClient>> connectTo(const std::vector<std::string>& servers) const;
  /// Translates versions that were pulled before a move to a basis for the current daemons.
  std::vector<Version> translateBasis(const std::vector<Version>& basis) const;
  /// A batch of the rows of `rows`, divided among the current daemons; null if `rows` already is.
  std::shared_ptr<RowBatch> redivide(const RowBatch* rows) const;
  template <class Info>
  Pending<Info> track(Pending<Info> call, std::function<void(const Result<Info>&)> after = nullptr);
  Pending<RoundDue> trackDue(Pending<RoundDue> call);

  const std::shared_ptr<ClientLock> lock_;
  // Calls that may be in progress; outlive inner_, which may use what they own.
  std::list<std::shared_ptr<TrackedCall>> calls_;
  std::list<std::shared_ptr<TrackedCall>> dues_;  // calls that end with a move
  std::mutex mutex_;                              // guards changes of inner_ and next_, for interrupt()
  std::shared_ptr<MovableClient> inner_;          // kept by each call while it leaves the lock
  MovableClient* next_ = nullptr;                 // may replace inner_
  const Connect connect_;
  const std::chrono::milliseconds patience_;
  const std::function<void(const ClientEvent&)> onEvent_;
  std::atomic<bool> interrupted_{false};
  std::optional<Joined> joined_;
  std::optional<ModelSpec> observed_;  // by a reader
  JoinInfo info_;
  std::optional<Move> follows_;
  std::optional<Error> failed_;  // a move that this trainer could not follow
  std::set<Partial*> partials_;  // pushes that have started and are not finished
  bool pulled_ = false;          // since the last push
  bool onDevice_ = false;
  bool moved_ = false;
  uint64_t moves_ = 0;
  std::pair<uint64_t, uint64_t> previousBytes_;  // pulled and pushed at previous daemons
};

}  // namespace psd

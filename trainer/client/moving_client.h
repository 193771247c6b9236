#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trainer/client/movable_client.h"
#include "trainer/client/tracked_call.h"

namespace psd {

/// The Client of a model that may move: wraps a client of the daemons that serve it, and replaces it after a
/// move. A trainer changes over at the start of a step: in a pull, a request for samples, or a push without a
/// preceding pull. A reader changes over in any call after the move, or in a pull during which it happened.
/// Owned by one thread.
class MovingClient final : public Client {
 public:
  /// Returns a connected client of the daemons at `servers`, within `timeout` for each.
  using Connect = std::function<Result<std::unique_ptr<MovableClient>>(
      const std::vector<std::string>& servers, std::chrono::milliseconds timeout)>;

  /// `patience`: how long it tries to reach other daemons. `onEvent` may be null.
  MovingClient(std::unique_ptr<MovableClient> first, Connect connect, std::chrono::milliseconds patience,
               std::function<void(const ClientEvent&)> onEvent)
      : inner_(std::move(first)),
        connect_(std::move(connect)),
        patience_(patience),
        onEvent_(std::move(onEvent)) {}

  Result<JoinInfo> join(const Membership& membership, const ModelSpec& model,
                        const std::function<std::span<const float>()>& initialValues) override;
  Result<JoinInfo> observe(const ModelSpec& model) override;
  bool useDeviceMemory() override {
    onDevice_ = inner_->useDeviceMemory();
    return onDevice_;
  }
  RowBatch makeRowBatch() const override { return inner_->makeRowBatch(); }
  Pending<PullInfo> pull(std::span<float> destination, RowBatch* rows = nullptr) override;
  Pending<PushInfo> push(Step step, std::span<const float> gradient, GradientInfo behind,
                         const std::vector<Version>& basis, const RowBatch* rows = nullptr) override;
  std::unique_ptr<PartialPush> beginPush(Step step, std::span<const float> gradient, GradientInfo behind,
                                         const std::vector<Version>& basis,
                                         const RowBatch* rows = nullptr) override;
  Pending<RoundDue> roundDue(Version version) override;
  // Trainers that make these calls cannot move.
  Pending<PullInfo> pullFragment(std::span<float> destination, uint32_t fragment) override {
    return inner_->pullFragment(destination, fragment);
  }
  Pending<RoundDue> fragmentDue(const std::vector<Version>& basis, uint32_t fragment) override {
    return inner_->fragmentDue(basis, fragment);
  }
  Result<FormedGroup> formAveragingGroup(uint64_t after, const AveragingMember& where) override {
    return inner_->formAveragingGroup(after, where);
  }
  Result<MachineProgress> progress(bool settled) override;
  Result<AssignedSamples> takeSamples(const SamplesRequest& request) override;
  Status report(Step step, std::span<const NamedValue> values) override {
    return inner_->report(step, values);
  }
  Result<std::vector<Rank>> waiters() override {
    if (observed_) PSD_RETURN_IF_ERROR(beginStep());
    return inner_->waiters();
  }
  Result<PingInfo> ping(uint64_t calls, uint32_t outstanding) override {
    if (observed_) PSD_RETURN_IF_ERROR(beginStep());
    return inner_->ping(calls, outstanding);
  }
  Status leave() override;
  void interrupt() override;
  /// For a reader, empty between a move of the model and the call that follows it.
  std::span<const float> view() const override {
    const bool elsewhere = observed_ && !inner_->movedTo({}).empty();
    return elsewhere ? std::span<const float>() : inner_->view();
  }
  uint64_t bytesPulled() const override { return previousBytes_.first + inner_->bytesPulled(); }
  uint64_t bytesPushed() const override { return previousBytes_.second + inner_->bytesPushed(); }

 private:
  /// Arguments of the trainer's join().
  struct Joined {
    Membership membership;
    ModelSpec model;
    std::function<std::span<const float>()> initialValues;
  };
  class Partial;
  class ObservedPull;

  /// Start of a step, where the model may move. An Error: it did, and this trainer could not follow.
  Status beginStep();
  /// For a reader, after a call failed with `why`, which was made after `moves` moves: whether to repeat the
  /// call at other daemons.
  bool shouldRetryElsewhere(const Error& why, uint64_t moves);
  /// Waits for calls in progress.
  void settleCalls();
  Pending<PullInfo> startPull(std::span<float> destination, RowBatch* rows);
  Status moveTo(const DaemonAddresses& places);
  Status joinAt(const DaemonAddresses& places, const MovedFrom& from);
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

  std::list<std::shared_ptr<TrackedCall>>
      calls_;         // that may be in progress; must outlive inner_, which may use what they own
  std::mutex mutex_;  // guards changes of inner_ and next_, for interrupt()
  std::unique_ptr<MovableClient> inner_;
  MovableClient* next_ = nullptr;  // may replace inner_
  const Connect connect_;
  const std::chrono::milliseconds patience_;
  const std::function<void(const ClientEvent&)> onEvent_;
  std::atomic<bool> interrupted_{false};
  std::optional<Joined> joined_;
  std::optional<ModelSpec> observed_;  // by a reader
  JoinInfo info_;
  std::optional<Error> failed_;  // a move that this trainer could not follow
  size_t partials_ = 0;          // pushes that have started and are not finished
  bool pulled_ = false;          // since the last push
  bool onDevice_ = false;
  bool moved_ = false;
  const std::shared_ptr<uint64_t> moves_ = std::make_shared<uint64_t>(0);
  std::pair<uint64_t, uint64_t> previousBytes_;  // pulled and pushed at previous daemons
};

}  // namespace psd

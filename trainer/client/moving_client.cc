#include "trainer/client/moving_client.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "trainer/client/calls.h"
#include "trainer/client/failed_call.h"
#include "trainer/client/transport/daemon_connection.h"

namespace psd {
namespace {

constexpr std::chrono::milliseconds kNoticePause{5};     // for a notice that is in flight
constexpr std::chrono::milliseconds kObservePause{20};   // for daemons that are about to admit readers
constexpr std::chrono::milliseconds kReasonTime{2'000};  // for a daemon to report why it ends
constexpr std::chrono::milliseconds kDialAttempt{500};   // between checks for an interruption

/// Copies the values or the gradients of each row of `from` to its place in `to`, which has the same rows.
template <class Of>
void copyRows(const RowBatch& from, RowBatch& to, const RowBatch& order, bool orderIsTo, Of of) {
  for (uint32_t table = 0; table < from.tableCount(); table++) {
    const size_t dim = from.dim(table);
    const auto source = of(const_cast<RowBatch&>(from), table);
    const auto target = of(to, table);
    const auto places = order.places(table);  // of the rows of the other batch, in their order
    for (size_t i = 0; i < places.size(); i++) {
      const auto place = static_cast<size_t>(places[i]);
      const size_t at = orderIsTo ? i : place, into = orderIsTo ? place : i;
      std::copy_n(source.begin() + static_cast<ptrdiff_t>(at * dim), dim,
                  target.begin() + static_cast<ptrdiff_t>(into * dim));
    }
  }
}

std::span<float> valuesOf(RowBatch& batch, uint32_t table) { return batch.rows(table); }
std::span<float> gradientsOf(RowBatch& batch, uint32_t table) { return batch.gradients(table); }

/// A roundDue() call, which is lost when the model moves. Used on the client's thread.
class DueUntilMove final : public Pending<RoundDue>::Impl {
 public:
  DueUntilMove(Pending<RoundDue> due, std::shared_ptr<const uint64_t> moves)
      : due_(std::move(due)), moves_(std::move(moves)), movesAtStart_(*moves_) {}
  bool done() const override { return *moves_ != movesAtStart_ || due_.done(); }
  Result<RoundDue> wait() override {
    if (*moves_ == movesAtStart_) return due_.wait();
    return Error{ErrorCode::unavailable, "the model has moved to other daemons"};
  }

 private:
  Pending<RoundDue> due_;
  const std::shared_ptr<const uint64_t> moves_;
  const uint64_t movesAtStart_;
};

}  // namespace

/// A push that has started, with its rows divided among the current daemons. Used on the client's thread.
class MovingClient::Partial final : public PartialPush {
 public:
  Partial(MovingClient& client, std::unique_ptr<PartialPush> push, const RowBatch* rows,
          std::shared_ptr<RowBatch> divided)
      : client_(client), push_(std::move(push)), rows_(rows), divided_(std::move(divided)) {
    client_.partials_++;
  }
  ~Partial() override {
    if (push_) client_.partials_--;
  }
  void ready(uint64_t begin, uint64_t count) override { push_->ready(begin, count); }
  Pending<PushInfo> finish() override {
    if (divided_) copyRows(*rows_, *divided_, *divided_, true, gradientsOf);
    auto answer = push_->finish();
    push_.reset();
    client_.partials_--;
    return client_.track<PushInfo>(std::move(answer), [kept = divided_](const Result<PushInfo>&) {});
  }

 private:
  MovingClient& client_;
  std::unique_ptr<PartialPush> push_;  // until finish()
  const RowBatch* const rows_;
  const std::shared_ptr<RowBatch> divided_;  // null: rows_ is divided correctly
};

/// A reader's pull, which continues at other daemons if the model moves during it. Used on the client's
/// thread; the client outlives it.
class MovingClient::ObservedPull final : public Pending<PullInfo>::Impl {
 public:
  ObservedPull(MovingClient& client, std::span<float> destination, RowBatch* rows)
      : client_(client), destination_(destination), rows_(rows) {
    start();
  }
  bool done() const override { return call_->done(); }
  bool finished() const override { return call_->finished(); }
  Result<PullInfo> wait() override {
    for (;;) {
      Result<PullInfo> pulled = call_->wait();
      if (pulled.ok()) return pulled;
      if (client_.shouldRetryElsewhere(pulled.error(), moves_)) {
        start();
      } else {
        return client_.failed_ ? Result<PullInfo>(*client_.failed_) : pulled;
      }
    }
  }

 private:
  void start() {
    moves_ = *client_.moves_;
    call_.emplace(client_.startPull(destination_, rows_));
  }

  MovingClient& client_;
  const std::span<float> destination_;
  RowBatch* const rows_;
  uint64_t moves_ = 0;  // number of moves when it was sent
  std::optional<Pending<PullInfo>> call_;
};

template <class Info>
Pending<Info> MovingClient::track(Pending<Info> call, std::function<void(const Result<Info>&)> after) {
  auto tracked = std::make_shared<Tracked<Info>>(std::move(call), std::move(after));
  std::erase_if(calls_, [](const auto& each) { return each.use_count() == 1 && each->finished(); });
  calls_.push_back(tracked);
  return Pending<Info>(std::make_unique<TrackedPending<Info>>(std::move(tracked)));
}

Result<JoinInfo> MovingClient::observe(const ModelSpec& model) {
  auto info = inner_->observe(model);
  if (info.ok()) observed_ = info->model.empty() ? model : info->model;
  return info;
}

Result<JoinInfo> MovingClient::join(const Membership& membership, const ModelSpec& model,
                                    const std::function<std::span<const float>()>& initialValues) {
  auto info = inner_->join(membership, model, initialValues);
  if (info.ok()) {
    info_ = *info;
    joined_ = Joined{{info->rank, info->worldSize}, model, initialValues};
  }
  return info;
}

// --- The move --------------------------------------------------------------------------------------------

Status MovingClient::beginStep() {
  if (failed_) return *failed_;
  if (observed_) {
    const DaemonAddresses places = inner_->movedTo({});
    return places.empty() ? Status() : moveTo(places);
  }
  if (!joined_ || partials_ > 0 || !inner_->pendingMove()) return {};
  settleCalls();
  PSD_ASSIGN_OR_RETURN(const DaemonAddresses places, inner_->quiesce());
  return places.empty() ? Status() : moveTo(places);
}

void MovingClient::settleCalls() {
  for (const auto& call : calls_) call->settle();  // the answer is kept for its caller
  calls_.clear();
}

bool MovingClient::shouldRetryElsewhere(const Error& why, uint64_t moves) {
  if (failed_ || interrupted_) return false;
  if (moves != *moves_) return true;
  // When a daemon refuses a call because it ends, the reason may arrive later; over a connection that has
  // ended nothing more arrives.
  const bool ends = why.code == ErrorCode::shuttingDown;
  if (!ends && !isLost(why)) return false;
  const DaemonAddresses places = inner_->movedTo(ends ? kReasonTime : std::chrono::milliseconds(0));
  return !places.empty() && moveTo(places).ok();
}

Status MovingClient::moveTo(const DaemonAddresses& places) {
  const auto start = std::chrono::steady_clock::now();
  if (observed_) settleCalls();
  const Status there = observed_ ? observeAt(places) : joinAt(places, inner_->movedFrom());
  const std::string where = joined(places, " ", [](const auto& of) { return joined(of, ","); });
  if (!there.ok()) {
    failed_ = Error{there.error().code, fmt::format("the model has moved to {}: {}", where, there.message())};
    return *failed_;
  }
  if (onEvent_) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    onEvent_(
        {ClientEvent::What::back, fmt::format("the model has moved to {}, and so has this {}, in {}", where,
                                              observed_ ? "reader" : "trainer", durationText(taken))});
  }
  return {};
}

Status MovingClient::joinAt(const DaemonAddresses& places, const MovedFrom& from) {
  PSD_ASSIGN_OR_RETURN(auto next, connectTo(places.front()));
  next->setMovedFrom(from);
  change(std::move(next));
  if (interrupted_) return interruptedError();
  PSD_ASSIGN_OR_RETURN(const JoinInfo info,
                       inner_->join(joined_->membership, joined_->model, joined_->initialValues));
  if (info.local != info_.local) {
    return {ErrorCode::invalidArgument,
            fmt::format("the daemons there use policy '{}', whose local steps differ from those that this "
                        "trainer joined with; restart this trainer",
                        info.policy)};
  }
  info_ = info;
  moved_ = true;
  if (onDevice_ && !inner_->stayOnDevice()) {
    return {ErrorCode::invalidArgument,
            "the trainer's arrays are in the memory of a CUDA device, which several daemons do not support; "
            "restart it"};
  }
  return {};
}

Status MovingClient::observeAt(const DaemonAddresses& places) {
  const auto end = std::chrono::steady_clock::now() + patience_;
  for (;;) {
    PSD_ASSIGN_OR_RETURN(auto next, connectTo(places.front()));
    expect(next.get());
    const Status observed = interrupted_ ? Status(interruptedError()) : next->observe(*observed_).status();
    if (observed.ok()) {
      change(std::move(next));
      moved_ = true;
      return {};
    }
    expect(nullptr);
    // They reject readers until they know that the move is complete.
    if (!isRetryable(observed.error().code) || std::chrono::steady_clock::now() > end) return observed;
    std::this_thread::sleep_for(kObservePause);
  }
}

void MovingClient::expect(MovableClient* next) {
  const std::lock_guard hold(mutex_);
  next_ = next;
}

void MovingClient::change(std::unique_ptr<MovableClient> next) {
  std::unique_ptr<MovableClient> before;
  {
    const std::lock_guard hold(mutex_);
    previousBytes_.first += inner_->bytesPulled();
    previousBytes_.second += inner_->bytesPushed();
    before = std::exchange(inner_, std::move(next));
    next_ = nullptr;
  }
  ++*moves_;
}

Result<std::unique_ptr<MovableClient>> MovingClient::connectTo(
    const std::vector<std::string>& servers) const {
  const auto end = std::chrono::steady_clock::now() + patience_;
  for (;;) {
    auto next = connect_(servers, std::min(kDialAttempt, patience_));
    if (next.ok() || !isRetryable(next.error().code) || std::chrono::steady_clock::now() > end) return next;
    if (interrupted_) return interruptedError();
  }
}

std::vector<Version> MovingClient::translateBasis(const std::vector<Version>& basis) const {
  const size_t blocks = size_t{info_.shardCount} + info_.rowShardCount;
  if (!moved_ || basis.empty() || basis.size() == blocks) return basis;
  return std::vector<Version>(blocks, *std::ranges::min_element(basis));
}

std::shared_ptr<RowBatch> MovingClient::redivide(const RowBatch* rows) const {
  if (!moved_ || rows == nullptr) return nullptr;
  auto divided = std::make_shared<RowBatch>(inner_->makeRowBatch());
  if (divided->daemons() == rows->daemons() && divided->shards() == rows->shards()) return nullptr;
  std::vector<RowBatch::Feature> features;
  for (uint32_t table = 0; table < rows->tableCount(); table++) features.push_back({table, rows->ids(table)});
  divided->make(features);
  return divided;
}

// --- Calls -----------------------------------------------------------------------------------------------

Pending<PullInfo> MovingClient::pull(std::span<float> destination, RowBatch* rows) {
  if (Status begun = beginStep(); !begun.ok()) return failedCall<PullInfo>(begun.error());
  pulled_ = true;
  if (observed_) return Pending<PullInfo>(std::make_unique<ObservedPull>(*this, destination, rows));
  if (!joined_) return inner_->pull(destination, rows);
  return startPull(destination, rows);
}

Pending<PullInfo> MovingClient::startPull(std::span<float> destination, RowBatch* rows) {
  const auto divided = redivide(rows);
  if (!divided) return track(inner_->pull(destination, rows));
  return track<PullInfo>(inner_->pull(destination, divided.get()),
                         [divided, rows](const Result<PullInfo>& pulled) {
                           if (!pulled.ok()) return;
                           rows->dropLostMemory();
                           copyRows(*divided, *rows, *divided, false, valuesOf);
                         });
}

Pending<PushInfo> MovingClient::push(Step step, std::span<const float> gradient, GradientInfo behind,
                                     const std::vector<Version>& basis, const RowBatch* rows) {
  const std::unique_ptr<PartialPush> push = beginPush(step, gradient, behind, basis, rows);
  if (!gradient.empty()) push->ready(0, gradient.size());
  return push->finish();
}

std::unique_ptr<PartialPush> MovingClient::beginPush(Step step, std::span<const float> gradient,
                                                     GradientInfo behind, const std::vector<Version>& basis,
                                                     const RowBatch* rows) {
  if (!pulled_) {
    if (Status begun = beginStep(); !begun.ok()) return std::make_unique<FailedPush>(begun.error());
  }
  if (failed_) return std::make_unique<FailedPush>(*failed_);
  pulled_ = false;
  auto divided = redivide(rows);
  auto push =
      inner_->beginPush(step, gradient, behind, translateBasis(basis), divided ? divided.get() : rows);
  return std::make_unique<Partial>(*this, std::move(push), rows, std::move(divided));
}

Pending<RoundDue> MovingClient::roundDue(Version version) {
  return Pending<RoundDue>(std::make_unique<DueUntilMove>(inner_->roundDue(version), moves_));
}

Result<MachineProgress> MovingClient::progress(bool settled) {
  PSD_RETURN_IF_ERROR(beginStep());
  return inner_->progress(settled);
}

Result<AssignedSamples> MovingClient::takeSamples(const SamplesRequest& request) {
  for (;;) {
    PSD_RETURN_IF_ERROR(beginStep());
    const auto assigned = inner_->takeSamples(request);
    const bool forMove = assigned.ok() && assigned->what == AssignedSamples::What::nothingNow && request.wait;
    if (!forMove) return assigned;
    if (interrupted_) return interruptedError();
    std::this_thread::sleep_for(kNoticePause);
  }
}

Status MovingClient::leave() {
  if (failed_) return *failed_;
  return inner_->leave();
}

void MovingClient::interrupt() {
  interrupted_ = true;
  const std::lock_guard hold(mutex_);
  inner_->interrupt();
  if (next_ != nullptr) next_->interrupt();
}

}  // namespace psd

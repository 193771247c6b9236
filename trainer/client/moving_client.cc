#include "trainer/client/moving_client.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "trainer/client/api/failed_call.h"
#include "trainer/client/calls.h"
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

Error destroyedError() { return {ErrorCode::interrupted, "the client was destroyed"}; }

}  // namespace

/// A push that has started, with its rows divided among the current daemons. Used by one thread at a time;
/// may outlive the client.
class MovingClient::Partial final : public PartialPush {
 public:
  Partial(MovingClient& client, std::unique_ptr<PartialPush> push, const RowBatch* rows,
          std::shared_ptr<RowBatch> divided)
      : lock_(client.lock_),
        client_(client),
        push_(std::move(push)),
        rows_(rows),
        divided_(std::move(divided)) {
    client_.partials_.insert(this);
  }
  ~Partial() override {
    const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
    while (!lock_->awaitTurn().ok()) continue;
    drop();
  }
  void ready(uint64_t begin, uint64_t count) override {
    const ClientLock::Hold hold(*lock_);
    if (push_ && hold.status().ok()) push_->ready(begin, count);
  }
  Pending<PushInfo> finish() override {
    const ClientLock::Hold hold(*lock_);
    if (!hold.status().ok()) return failedCall<PushInfo>(hold.status().error());
    if (!push_) return failedCall<PushInfo>(destroyedError());
    if (divided_) copyRows(*rows_, *divided_, *divided_, true, gradientsOf);
    auto answer = push_->finish();
    drop();
    return client_.track<PushInfo>(std::move(answer), [kept = divided_](const Result<PushInfo>&) {});
  }
  /// Abandons the push, unless it is finished. With the lock held.
  void drop() {
    if (!push_) return;
    client_.partials_.erase(this);
    const std::unique_ptr<PartialPush> last = std::move(push_);  // its destructor leaves the lock
  }

 private:
  const std::shared_ptr<ClientLock> lock_;
  MovingClient& client_;               // exists while push_ does
  std::unique_ptr<PartialPush> push_;  // until finish() or the end of the client
  const RowBatch* const rows_;
  const std::shared_ptr<RowBatch> divided_;  // null: rows_ is divided correctly
};

/// A reader's pull, which continues at other daemons if the model moves during it. Used with the lock held.
class MovingClient::ObservedPull final : public Pending<PullInfo>::Impl {
 public:
  ObservedPull(MovingClient& client, ArenaValues destination, RowBatch* rows)
      : client_(client), destination_(destination), rows_(rows) {
    start();
  }
  bool done() const override { return pull_->call.done(); }
  bool finished() const override { return pull_->call.finished(); }
  Result<PullInfo> wait() override {
    for (;;) {
      Result<PullInfo> pulled = pull_->call.wait();
      if (pulled.ok()) {
        if (pull_->after) pull_->after(pulled);
        return pulled;
      }
      PSD_ASSIGN_OR_RETURN(const bool again, client_.shouldRetryElsewhere(pulled.error(), moves_));
      if (!again) return client_.failed_ ? Result<PullInfo>(*client_.failed_) : pulled;
      start();
    }
  }

 private:
  void start() {
    moves_ = client_.moves_;
    pull_.emplace(client_.startPull(destination_, rows_));
    at_ = client_.inner_;
  }

  MovingClient& client_;
  const ArenaValues destination_;
  RowBatch* const rows_;
  uint64_t moves_ = 0;                 // number of moves when it was sent
  std::shared_ptr<MovableClient> at_;  // makes the call
  std::optional<StartedPull> pull_;
};

MovingClient::~MovingClient() {
  const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
  if (lock_->threads() > 1) interrupt();
  while (!lock_->awaitChange([this] { return lock_->threads() == 1; })) continue;
  for (const auto* calls : {&calls_, &dues_}) {
    for (const auto& call : *calls) call->drop(destroyedError());
  }
  while (!partials_.empty()) (*partials_.begin())->drop();
}

template <class Info>
Pending<Info> MovingClient::track(Pending<Info> call, std::function<void(const Result<Info>&)> after) {
  auto tracked = std::make_shared<Tracked<Info>>(*lock_, std::move(call), inner_, std::move(after));
  std::erase_if(calls_, [](const auto& each) { return each.use_count() == 1 && each->finished(); });
  calls_.push_back(tracked);
  return Pending<Info>(std::make_unique<TrackedPending<Info>>(lock_, std::move(tracked)));
}

Pending<RoundDue> MovingClient::trackDue(Pending<RoundDue> call) {
  auto tracked = std::make_shared<Tracked<RoundDue>>(*lock_, std::move(call), nullptr, nullptr);
  std::erase_if(dues_, [](const auto& each) { return each.use_count() == 1; });
  dues_.push_back(tracked);
  return Pending<RoundDue>(std::make_unique<TrackedPending<RoundDue>>(lock_, std::move(tracked)));
}

Result<JoinInfo> MovingClient::observe(const ModelSpec& model) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  const ClientLock::Alone alone(*lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  auto info = inner_->observe(model);
  if (info.ok()) observed_ = info->model.empty() ? model : info->model;
  return info;
}

Result<JoinInfo> MovingClient::join(const Membership& membership, const ModelSpec& model,
                                    const std::function<ConstArenaValues()>& initialValues) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  const ClientLock::Alone alone(*lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  const auto values = [lock = lock_.get(), initialValues] { return lock->callBack(initialValues); };
  auto info = inner_->join(membership, model, values);
  if (info.ok()) {
    info_ = *info;
    joined_ = Joined{{info->rank, info->worldSize}, model, values};
  }
  return info;
}

bool MovingClient::useDeviceMemory() {
  const ClientLock::Hold hold(*lock_);
  if (hold.status().ok()) onDevice_ = inner_->useDeviceMemory();
  return onDevice_;
}

// --- The move --------------------------------------------------------------------------------------------

Status MovingClient::beginStep() {
  PSD_RETURN_IF_ERROR(lock_->awaitTurn());
  for (;;) {
    if (failed_) return *failed_;
    if (follows_) {
      const ClientLock::Alone alone(*lock_);
      PSD_RETURN_IF_ERROR(alone.status());
      if (follows_) PSD_RETURN_IF_ERROR(moveTo(DaemonAddresses(follows_->places)));
      continue;
    }
    const bool moves =
        observed_ ? !inner_->movedTo({}).empty() : joined_ && partials_.empty() && inner_->pendingMove();
    if (!moves) return {};
    if (joined_) PSD_RETURN_IF_ERROR(settleCalls());
    const ClientLock::Alone alone(*lock_);
    PSD_RETURN_IF_ERROR(alone.status());
    if (observed_) {
      const DaemonAddresses places = inner_->movedTo({});
      return places.empty() ? Status() : moveTo(places);
    }
    // Another thread may have made calls meanwhile, or have moved.
    if (!calls_.empty() || !partials_.empty() || !inner_->pendingMove()) continue;
    PSD_ASSIGN_OR_RETURN(const DaemonAddresses places, inner_->quiesce());
    return places.empty() ? Status() : moveTo(places);
  }
}

Status MovingClient::settleCalls() {
  while (!calls_.empty()) {
    const std::shared_ptr<TrackedCall> call = calls_.front();
    PSD_RETURN_IF_ERROR(call->settle());
    calls_.remove(call);  // the answer is kept for its caller
  }
  return {};
}

Result<bool> MovingClient::shouldRetryElsewhere(const Error& why, uint64_t moves) {
  PSD_RETURN_IF_ERROR(lock_->awaitTurn());
  if (failed_ || interrupted_) return false;
  if (moves != moves_) return true;
  // When a daemon refuses a call because it ends, the reason may arrive later; over a connection that has
  // ended nothing more arrives.
  const bool ends = why.code == ErrorCode::shuttingDown;
  if (!ends && !isLost(why)) return false;
  const std::shared_ptr<MovableClient> inner = inner_;
  const DaemonAddresses places = inner->movedTo(ends ? kReasonTime : std::chrono::milliseconds(0));
  if (places.empty()) return false;
  const ClientLock::Alone alone(*lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  if (failed_) return false;
  if (moves == moves_) {  // else another thread has moved meanwhile
    if (const Status moved = moveTo(places); !moved.ok() && !failed_) return moved.error();
  }
  return !failed_;
}

Status MovingClient::moveTo(const DaemonAddresses& places) {
  const auto start = std::chrono::steady_clock::now();
  const Status there = observed_ ? observeAt(places) : joinAt(places);
  if (!there.ok() && there.error().code == ErrorCode::interrupted && !interrupted_) return there;
  follows_.reset();
  const std::string where = joined(places, " ", [](const auto& of) { return joined(of, ","); });
  if (!there.ok()) {
    failed_ = Error{there.error().code, fmt::format("the model has moved to {}: {}", where, there.message())};
    return *failed_;
  }
  if (onEvent_) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    const ClientEvent event{ClientEvent::What::back,
                            fmt::format("the model has moved to {}, and so has this {}, in {}", where,
                                        observed_ ? "reader" : "trainer", durationText(taken))};
    lock_->callBack([&] { onEvent_(event); });
  }
  return {};
}

Status MovingClient::joinAt(const DaemonAddresses& places) {
  if (!follows_) follows_ = Move{places};
  if (!follows_->connected) {
    PSD_ASSIGN_OR_RETURN(auto next, connectTo(places.front()));
    next->setMovedFrom(inner_->movedFrom());
    change(std::move(next));
    follows_->connected = true;
  }
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
    if (!lock_->pause(kObservePause)) return waitEndedError();
  }
}

void MovingClient::expect(MovableClient* next) {
  const std::lock_guard hold(mutex_);
  next_ = next;
}

void MovingClient::change(std::unique_ptr<MovableClient> next) {
  std::shared_ptr<MovableClient> before;
  {
    const std::lock_guard hold(mutex_);
    previousBytes_.first += inner_->bytesPulled();
    previousBytes_.second += inner_->bytesPushed();
    before = std::exchange(inner_, std::move(next));
    next_ = nullptr;
  }
  moves_++;
  for (const auto& due : std::exchange(dues_, {})) {
    due->drop({ErrorCode::unavailable, "the model has moved to other daemons"});
  }
  lock_->outside([&before] { before = nullptr; });
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

RowBatch MovingClient::makeRowBatch() const {
  const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
  return inner_->makeRowBatch();
}

Pending<PullInfo> MovingClient::pull(ArenaValues destination, RowBatch* rows) {
  const ClientLock::Hold hold(*lock_);
  const Status begun = hold.status().ok() ? beginStep() : hold.status();
  if (!begun.ok()) return failedCall<PullInfo>(begun.error());
  pulled_ = true;
  if (observed_) {
    return track(Pending<PullInfo>(std::make_unique<ObservedPull>(*this, destination, rows)));
  }
  StartedPull started = startPull(destination, rows);
  return track(std::move(started.call), std::move(started.after));
}

MovingClient::StartedPull MovingClient::startPull(ArenaValues destination, RowBatch* rows) {
  const auto divided = redivide(rows);
  if (!divided) return {inner_->pull(destination, rows), nullptr};
  return {inner_->pull(destination, divided.get()), [divided, rows](const Result<PullInfo>& pulled) {
            if (!pulled.ok()) return;
            rows->dropLostMemory();
            copyRows(*divided, *rows, *divided, false, valuesOf);
          }};
}

Pending<PushInfo> MovingClient::push(Step step, ConstArenaValues gradient, GradientInfo behind,
                                     const std::vector<Version>& basis, const RowBatch* rows) {
  const std::unique_ptr<PartialPush> push = beginPush(step, gradient, behind, basis, rows);
  if (!gradient.empty()) push->ready(0, gradient.size());
  return push->finish();
}

std::unique_ptr<PartialPush> MovingClient::beginPush(Step step, ConstArenaValues gradient,
                                                     GradientInfo behind, const std::vector<Version>& basis,
                                                     const RowBatch* rows) {
  const ClientLock::Hold hold(*lock_);
  const Status begun = hold.status().ok() && !pulled_ ? beginStep() : hold.status();
  if (!begun.ok()) return std::make_unique<FailedPush>(begun.error());
  if (failed_) return std::make_unique<FailedPush>(*failed_);
  pulled_ = false;
  auto divided = redivide(rows);
  auto push =
      inner_->beginPush(step, gradient, behind, translateBasis(basis), divided ? divided.get() : rows);
  return std::make_unique<Partial>(*this, std::move(push), rows, std::move(divided));
}

Pending<RoundDue> MovingClient::roundDue(Version version) {
  const ClientLock::Hold hold(*lock_);
  if (!hold.status().ok()) return failedCall<RoundDue>(hold.status().error());
  return trackDue(inner_->roundDue(version));
}

Pending<PullInfo> MovingClient::pullFragment(ArenaValues destination, uint32_t fragment) {
  const ClientLock::Hold hold(*lock_);
  if (!hold.status().ok()) return failedCall<PullInfo>(hold.status().error());
  return track(inner_->pullFragment(destination, fragment));
}

Pending<RoundDue> MovingClient::fragmentDue(const std::vector<Version>& basis, uint32_t fragment) {
  const ClientLock::Hold hold(*lock_);
  if (!hold.status().ok()) return failedCall<RoundDue>(hold.status().error());
  return trackDue(inner_->fragmentDue(basis, fragment));
}

Result<FormedGroup> MovingClient::formAveragingGroup(uint64_t after, const AveragingMember& where) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  return std::shared_ptr(inner_)->formAveragingGroup(after, where);
}

Result<MachineProgress> MovingClient::progress(bool settled) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  PSD_RETURN_IF_ERROR(beginStep());
  return std::shared_ptr(inner_)->progress(settled);
}

Result<OptimizerState> MovingClient::fetchState() {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  PSD_RETURN_IF_ERROR(beginStep());
  return std::shared_ptr(inner_)->fetchState();
}

Status MovingClient::restoreState(const StateToRestore& state) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  PSD_RETURN_IF_ERROR(beginStep());
  return std::shared_ptr(inner_)->restoreState(state);
}

Result<AssignedSamples> MovingClient::takeSamples(const SamplesRequest& request) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  for (;;) {
    PSD_RETURN_IF_ERROR(beginStep());
    const std::shared_ptr<MovableClient> inner = inner_;
    const auto assigned = inner->takeSamples(request);
    const bool forMove = assigned.ok() && assigned->what == AssignedSamples::What::nothingNow && request.wait;
    if (!forMove) return assigned;
    if (interrupted_) return interruptedError();
    if (!lock_->pause(kNoticePause)) return waitEndedError();
  }
}

Status MovingClient::report(Step step, std::span<const NamedValue> values) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  return inner_->report(step, values);
}

Result<std::vector<Rank>> MovingClient::waiters() {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  if (observed_) PSD_RETURN_IF_ERROR(beginStep());
  return std::shared_ptr(inner_)->waiters();
}

template <class Call>
auto MovingClient::askThere(const Call& call) -> decltype(call(std::declval<Client&>())) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  if (observed_) PSD_RETURN_IF_ERROR(beginStep());
  return call(*std::shared_ptr(inner_));
}

Status MovingClient::setBuffers(std::vector<std::byte> file) {
  return askThere([&file](Client& there) { return there.setBuffers(std::move(file)); });
}

Result<std::vector<std::byte>> MovingClient::buffers() {
  return askThere([](Client& there) { return there.buffers(); });
}

Result<std::vector<std::string>> MovingClient::status() {
  return askThere([](Client& there) { return there.status(); });
}

Result<std::vector<std::string>> MovingClient::set(const std::string& assignment) {
  return askThere([&assignment](Client& there) { return there.set(assignment); });
}

Result<std::vector<std::string>> MovingClient::checkpoint() {
  return askThere([](Client& there) { return there.checkpoint(); });
}

Result<PingInfo> MovingClient::ping(uint64_t calls, uint32_t outstanding) {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  if (observed_) PSD_RETURN_IF_ERROR(beginStep());
  return std::shared_ptr(inner_)->ping(calls, outstanding);
}

Status MovingClient::leave() {
  const ClientLock::Hold hold(*lock_);
  PSD_RETURN_IF_ERROR(hold.status());
  const ClientLock::Alone alone(*lock_);
  PSD_RETURN_IF_ERROR(alone.status());
  if (failed_) return *failed_;
  return inner_->leave();
}

void MovingClient::interrupt() {
  interrupted_ = true;
  const std::lock_guard hold(mutex_);
  inner_->interrupt();
  if (next_ != nullptr) next_->interrupt();
}

std::span<const float> MovingClient::view() const {
  const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
  const bool elsewhere = observed_ && !inner_->movedTo({}).empty();
  return elsewhere ? std::span<const float>() : inner_->view();
}

uint64_t MovingClient::bytesPulled() const {
  const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
  return previousBytes_.first + inner_->bytesPulled();
}

uint64_t MovingClient::bytesPushed() const {
  const ClientLock::Hold hold(*lock_, ClientLock::Turn::any);
  return previousBytes_.second + inner_->bytesPushed();
}

}  // namespace psd

#include "trainer/bridge/bridge.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/os/random_id.h"
#include "common/text/quantity.h"
#include "common/types/model_layout.h"
#include "trainer/client/attempts.h"

namespace psd {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPoll{5}, kAnswerPoll{1}, kModelPoll{50};
constexpr milliseconds kFailedPause{500};       // after a failed round
constexpr milliseconds kConnectTimeout{2'000};  // per attempt; the stop flag is checked between attempts

constexpr const char* kLocal = "this machine's daemon";
constexpr const char* kRoot = "the root";

Error at(const char* side, const Error& error) {
  const bool shows = side == kLocal && error.code == ErrorCode::unauthenticated;
  return {error.code, std::string(side) + ": " + error.message +
                          (shows ? "; the token for this machine's daemon is --local-token-file" : "")};
}

/// out = a − b. A plain loop, which the compiler vectorizes.
void subtract(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); i++) out[i] = a[i] - b[i];
}

bool anyLower(const std::vector<Version>& versions, const std::vector<Version>& than) {
  if (versions.size() != than.size()) return true;
  for (size_t i = 0; i < than.size(); i++) {
    if (versions[i] < than[i]) return true;
  }
  return false;
}

/// The versions after a difference, which is one update of each shard.
std::vector<Version> incremented(std::vector<Version> versions) {
  for (Version& version : versions) version.value++;
  return versions;
}

uint32_t countOf(uint64_t updates) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(updates, 1, UINT32_MAX));
}

bool canRetry(const Error& error) {
  return isRetryable(error.code) || error.code == ErrorCode::notReady ||
         error.code == ErrorCode::shuttingDown;
}

Status checkRoot(const JoinInfo& info) {
  if (info.local.period == 0) {
    return {ErrorCode::invalidArgument,
            fmt::format("{}: policy {} expects gradients, but a bridge pushes the result of many updates; "
                        "expected local_sgd, easgd, diloco or async_diloco",
                        kRoot, info.policy)};
  }
  if (!info.local.streams()) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("{}: a bridge supports neither `fragments` nor a `delay` of policy diloco", kRoot)};
}

}  // namespace

Bridge::Bridge(BridgeOptions options, Connect connect, Env& env,
               std::function<void(const BridgeExchange&)> tell)
    : options_(std::move(options)), connect_(std::move(connect)), env_(env), tell_(std::move(tell)) {
  for (ClientOptions* client : {&options_.local, &options_.root}) {
    client->retryTimeout = milliseconds(0);  // run() retries from the saved state
    client->connectTimeout = kConnectTimeout;
    client->codec = "none";  // a codec's residual would be lost with the client
    client->cannotMove = "a bridge is bound to its two daemons; stop it for the move";
  }
  options_.local.bridges = true;
  options_.local.pullCodec = "none";
}

// --- Retry loop --------------------------------------------------------------------------------------

Status Bridge::run(const std::atomic<bool>& stop) {
  stop_ = &stop;
  PSD_RETURN_IF_ERROR(openState());
  Backoff backoff(state_.incarnation);
  for (lastProgress_ = Clock::now(); !stop;) {
    const Clock::time_point before = lastProgress_;
    localShutsDown_ = false;
    const Status ended = serve();
    if (localShutsDown_ && root_ && state_.phase != Phase::pushing) static_cast<void>(root_->leave());
    if (ended.ok() && local_) static_cast<void>(local_->leave());  // the same bridge can join again later
    disconnect();
    if (ended.ok() || stop) return {};
    if (localShutsDown_) {
      spdlog::info("{}", ended.message());
      return {};
    }
    if (!canRetry(ended.error())) return ended;
    if (lastProgress_ != before) {
      spdlog::warn("{}; trying again for up to {}", ended.message(), durationText(options_.retryTimeout));
      backoff = Backoff(state_.incarnation);
    }
    if (Clock::now() - lastProgress_ > options_.retryTimeout) {
      return {ErrorCode::unavailable,
              fmt::format("{}; gave up after {}", ended.message(), durationText(options_.retryTimeout))};
    }
    static_cast<void>(sleepFor(backoff.next()));
  }
  return {};
}

void Bridge::disconnect() {
  due_.reset();
  root_.reset();
  local_.reset();
}

Status Bridge::openState() {
  PSD_ASSIGN_OR_RETURN(file_, BridgeFile::open(env_, options_.folder));
  PSD_ASSIGN_OR_RETURN(state_, file_->load());
  if (state_.incarnation == 0) {
    state_.incarnation = drawId();
    state_.rank = options_.membership.rank;
    PSD_RETURN_IF_ERROR(file_->save(state_));
  }
  options_.local.incarnation = options_.root.incarnation = state_.incarnation;
  if (state_.rank == options_.membership.rank) return {};
  return {ErrorCode::invalidArgument,
          fmt::format("'{}' is the state of the bridge of rank {}, not {}; each bridge needs its own folder",
                      options_.folder, state_.rank.value, options_.membership.rank.value)};
}

Status Bridge::serve() {
  PSD_RETURN_IF_ERROR(readModel());
  PSD_RETURN_IF_ERROR(joinLocal());
  if (state_.phase == Phase::fresh) PSD_RETURN_IF_ERROR(initializeState());
  for (;;) {
    PSD_ASSIGN_OR_RETURN(const bool active, awaitTrainers());
    if (!active) return {};
    PSD_RETURN_IF_ERROR(joinRoot());
    PSD_RETURN_IF_ERROR(recover());
    lastProgress_ = Clock::now();
    PSD_RETURN_IF_ERROR(exchangeLoop());
    due_.reset();
    if (Status left = root_->leave(); !left.ok()) return at(kRoot, left.error());
    root_.reset();
  }
}

// --- Joining -----------------------------------------------------------------------------------------

Result<std::unique_ptr<Client>> Bridge::joined(ClientOptions options, JoinInfo& info,
                                               const Join& join) const {
  for (size_t tried = 1;; tried++) {
    PSD_ASSIGN_OR_RETURN(auto client, connect_(options));
    auto told = join(*client);
    const bool isStandby = !told.ok() && told.error().code == ErrorCode::standby;
    if (isStandby && tried < options.servers.size()) {
      std::rotate(options.servers.begin(), options.servers.begin() + 1, options.servers.end());
      continue;
    }
    if (!told.ok()) return told.error();
    info = *std::move(told);
    return client;
  }
}

Result<bool> Bridge::readModelFrom(ClientOptions options) {
  options.codec.clear();  // observers use no codec
  options.pullCodec.clear();
  JoinInfo info;
  auto client = joined(options, info, [](Client& each) { return each.observe({}); });
  if (!client.ok() && client.error().code == ErrorCode::notReady) return false;
  if (!client.ok()) return client.error();
  if (info.model.empty()) {
    return Error{ErrorCode::invalidArgument, "several daemons serve the model; a bridge supports one"};
  }
  model_ = std::move(info.model);
  first_.assign(ModelLayout(model_).totalElements(), 0);
  if (state_.phase != Phase::fresh) return true;
  PSD_RETURN_IF_ERROR(pull(**client, first_).status());
  firstFromRoot_ = options.servers == options_.root.servers;
  return true;
}

Status Bridge::readModel() {
  if (!model_.empty() && state_.phase != Phase::fresh) return {};
  const std::pair<const char*, const ClientOptions*> sides[] = {{kRoot, &options_.root},
                                                                {kLocal, &options_.local}};
  for (bool told = false;; told = true) {
    for (const auto& [side, options] : sides) {
      const auto learnt = readModelFrom(*options);
      if (!learnt.ok()) return at(side, learnt.error());
      if (*learnt) return checkModel();
    }
    if (!told)
      spdlog::info("neither daemon has a model yet; waiting for this machine's trainers to initialize it");
    lastProgress_ = Clock::now();  // this wait has no time limit
    PSD_RETURN_IF_ERROR(sleepFor(kModelPoll));
  }
}

Status Bridge::checkModel() {
  working_.assign(first_.size(), 0);
  const uint64_t signature = model_.signature();
  if (state_.phase == Phase::fresh) state_.signature = signature;
  if (state_.signature == signature && (state_.base.empty() || state_.base.size() == first_.size()))
    return {};
  return {ErrorCode::modelMismatch,
          fmt::format("'{}' is the state of another model than the daemons serve; expected a new folder",
                      options_.folder)};
}

Status Bridge::joinLocal() {
  const auto initialValues = [this] {
    return std::span<const float>(state_.phase == Phase::fresh ? first_ : state_.base);
  };
  auto client =
      joined(options_.local, localInfo_, [&](Client& each) { return each.join({}, model_, initialValues); });
  if (!client.ok()) return atLocal(client.error());
  local_ = *std::move(client);
  if (localInfo_.daemon != 0) return {};
  return {ErrorCode::invalidArgument,
          "this machine's daemon: several daemons serve the model; a bridge supports one"};
}

Status Bridge::joinRoot() {
  const auto initialValues = [this] { return std::span<const float>(state_.base); };
  auto client = joined(options_.root, rootInfo_,
                       [&](Client& each) { return each.join(options_.membership, model_, initialValues); });
  if (!client.ok()) return at(kRoot, client.error());
  root_ = *std::move(client);
  if (rootInfo_.daemon != 0) return checkRoot(rootInfo_);
  return {ErrorCode::invalidArgument, "the root: several daemons serve the model; a bridge supports one"};
}

Status Bridge::initializeState() {
  const bool brought = firstFromRoot_ && localInfo_.initializedModel;
  PSD_ASSIGN_OR_RETURN(const PullInfo own, snapshot(working_));
  state_.other.assign(first_.size(), 0);
  // If the machine has its own values, the root's replace them. Otherwise its updates since initialization
  // are kept.
  if (firstFromRoot_ && !brought) subtract(working_, first_, state_.other);
  state_.base = firstFromRoot_ ? first_ : working_;
  state_.seen = own.versions;
  state_.basis = {Version{0}};  // until catchUp() after the first join of the root
  state_.counted = brought ? std::vector(own.versions.size(), Version{1}) : incremented(own.versions);
  state_.phase = Phase::adding;
  state_.added.value++;
  state_.localDaemon = localInfo_.daemon;
  return file_->save(state_);
}

// --- Recovery ----------------------------------------------------------------------------------------

Status Bridge::recover() {
  began_ = Clock::now();
  PSD_ASSIGN_OR_RETURN(const MachineProgress here, progress());
  const bool lost = localInfo_.daemon != state_.localDaemon && anyLower(here.began, state_.seen);
  if (state_.phase == Phase::pushing) PSD_RETURN_IF_ERROR(push());
  if (lost) {
    spdlog::warn(
        "{} restarted without updates that it had; it resumes from the common parameters, and its "
        "training since the last exchange is lost",
        kLocal);
    return resetToRoot();
  }
  state_.localDaemon = localInfo_.daemon;
  PSD_RETURN_IF_ERROR(add(state_.updates));
  // Under easgd both sides keep their own values, except the initial ones.
  return elastic() && state_.rootDaemon != 0 ? Status() : catchUp();
}

Status Bridge::resetToRoot() {
  const auto common = pull(*root_, state_.base);
  if (!common.ok()) return at(kRoot, common.error());
  PSD_ASSIGN_OR_RETURN(const PullInfo own, snapshot(working_));
  subtract(working_, state_.base, state_.other);
  state_.phase = Phase::adding;
  state_.added.value++;
  state_.updates = 0;
  state_.basis = common->versions;
  state_.seen = own.versions;
  state_.counted = incremented(own.versions);
  state_.rootDaemon = rootInfo_.daemon;
  state_.localDaemon = localInfo_.daemon;
  PSD_RETURN_IF_ERROR(file_->save(state_));
  return add(0);
}

Status Bridge::catchUp() {
  const auto common = pull(*root_, working_);
  if (!common.ok()) return at(kRoot, common.error());
  if (common->versions == state_.basis && state_.rootDaemon == rootInfo_.daemon) return {};
  subtract(state_.base, working_, state_.other);
  state_.base.swap(working_);
  state_.phase = Phase::adding;
  state_.added.value++;
  state_.updates = 0;
  state_.counted = incremented(state_.counted);
  state_.basis = common->versions;
  state_.rootDaemon = rootInfo_.daemon;
  PSD_RETURN_IF_ERROR(file_->save(state_));
  return add(0);
}

// --- Exchanges ---------------------------------------------------------------------------------------

Error Bridge::atLocal(const Error& error) {
  localShutsDown_ = error.code == ErrorCode::shuttingDown;
  return at(kLocal, error);
}

Result<MachineProgress> Bridge::progress() {
  auto here = local_->progress();
  if (here.ok()) return here;
  return atLocal(here.error());
}

uint64_t Bridge::updatesIn(const std::vector<Version>& versions) const {
  // The maximum over shards: a snapshot may have an update in some shards and not yet in others.
  uint64_t most = 0;
  for (size_t i = 0; i < versions.size() && i < state_.counted.size(); i++) {
    const uint64_t version = versions[i].value, counted = state_.counted[i].value;
    if (version > counted) most = std::max(most, version - counted);
  }
  return most;
}

Result<bool> Bridge::awaitTrainers() {
  for (bool told = false; !*stop_; told = true) {
    PSD_ASSIGN_OR_RETURN(const MachineProgress here, progress());
    const bool newAtRoot = state_.rootDaemon == 0;  // and may be the root's initializer
    if (newAtRoot || here.trainers > 0 || updatesIn(here.versions) > 0 || state_.phase == Phase::pushing) {
      return true;
    }
    if (here.over) return false;
    if (!told) spdlog::info("no trainer of this machine is joined; the root does not wait for it");
    lastProgress_ = Clock::now();
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

Status Bridge::exchangeLoop() {
  for (;;) {
    if (*stop_) return {};
    PSD_ASSIGN_OR_RETURN(const MachineProgress here, progress());
    const uint64_t updates = updatesIn(here.versions);
    if (here.trainers == 0 && updates == 0) return {};
    if (updates >= rootInfo_.local.period || (updates > 0 && (here.trainers == 0 || roundCloses()))) {
      PSD_RETURN_IF_ERROR(exchange());
      lastProgress_ = Clock::now();
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
}

bool Bridge::roundCloses() {
  if (!rootInfo_.local.endsEarly) return false;
  if (!due_) due_ = root_->roundDue(state_.basis.front());
  if (!due_->done()) return false;
  const bool told = due_->wait().ok();
  due_.reset();
  return told;
}

Status Bridge::exchange() {
  began_ = Clock::now();
  PSD_ASSIGN_OR_RETURN(const PullInfo own, snapshot(working_));
  if (elastic()) {
    const auto centre = pull(*root_, state_.base);
    if (!centre.ok()) return at(kRoot, centre.error());
    state_.basis = centre->versions;
    state_.rootDaemon = rootInfo_.daemon;
  }
  state_.updates = updatesIn(own.versions);
  state_.phase = Phase::pushing;
  state_.other.swap(working_);
  state_.pushed.value++;
  state_.seen = own.versions;
  PSD_RETURN_IF_ERROR(file_->save(state_));
  PSD_RETURN_IF_ERROR(push());
  return add(state_.updates);
}

Status Bridge::push() {
  due_.reset();
  subtract(state_.base, state_.other, working_);
  const uint32_t updates = countOf(state_.updates);
  const auto pushed = waitOrStop(root_->push(state_.pushed, working_, {updates, updates}, state_.basis));
  const bool failed = !pushed.ok() && (pushed.error().code == ErrorCode::deadlineExceeded ||
                                       pushed.error().code == ErrorCode::notReady);
  if (!pushed.ok() && !failed) return at(kRoot, pushed.error());
  if (failed) {
    spdlog::warn("the root: {}; these updates are part of the next exchange", pushed.message());
    PSD_RETURN_IF_ERROR(sleepFor(kFailedPause));
  }
  const bool applied = pushed.ok() && pushed->outcome == PushOutcome::applied;
  if (elastic()) {
    const float alpha = applied ? static_cast<float>(rootInfo_.local.alpha) : 0;
    for (size_t i = 0; i < working_.size(); i++) state_.other[i] = -alpha * working_[i];
  } else {
    const auto common = pull(*root_, working_);
    if (!common.ok()) return at(kRoot, common.error());
    // The root has the snapshot's updates; if the push was not applied, it has the base, and the updates
    // since remain to be pushed.
    subtract(applied ? state_.other : state_.base, working_, state_.other);
    state_.base.swap(working_);
    state_.basis = common->versions;
    state_.rootDaemon = rootInfo_.daemon;
  }
  state_.counted = incremented(applied ? state_.seen : state_.counted);
  if (!applied) state_.updates = 0;
  state_.phase = Phase::adding;
  state_.added.value++;
  return file_->save(state_);
}

Status Bridge::add(uint64_t updates) {
  const uint64_t before = state_.seen.front().value;
  const auto added = waitOrStop(local_->push(state_.added, state_.other, 1, {}));
  if (!added.ok()) return atLocal(added.error());
  if (added->outcome != PushOutcome::applied) {
    return {ErrorCode::internal, fmt::format("{}: it dropped difference {}", kLocal, state_.added.value)};
  }
  for (size_t i = 0; i < state_.seen.size() && i < added->versions.size(); i++) {
    state_.seen[i] = std::max(state_.seen[i], added->versions[i]);
  }
  const uint64_t now = state_.seen.front().value;
  const BridgeExchange exchange{state_.basis.front(),
                                updates,
                                now > before ? now - before - 1 : 0,
                                state_.counted.front().value,
                                std::chrono::duration<double>(Clock::now() - began_).count(),
                                state_.base};
  const NamedValue report[] = {{"updates", static_cast<double>(updates)}};
  if (updates > 0) static_cast<void>(root_->report(state_.pushed, report));
  if (tell_ && state_.rootDaemon != 0) tell_(exchange);  // before that, `base` is not common
  return {};
}

Result<PullInfo> Bridge::snapshot(std::vector<float>& into) {
  auto own = pull(*local_, into);
  if (!own.ok()) return atLocal(own.error());
  const auto settled = local_->progress(true);
  if (!settled.ok()) return atLocal(settled.error());
  return own;
}

Result<PullInfo> Bridge::pull(Client& from, std::vector<float>& into) { return waitOrStop(from.pull(into)); }

Status Bridge::sleepFor(milliseconds most) const {
  const Clock::time_point end = Clock::now() + most;
  while (!*stop_ && Clock::now() < end) std::this_thread::sleep_for(kPoll);
  return *stop_ ? Status(ErrorCode::interrupted, "interrupted") : Status();
}

template <class Info>
Result<Info> Bridge::waitOrStop(Pending<Info> call) const {
  while (!call.done()) {
    if (*stop_) return Error{ErrorCode::interrupted, "interrupted"};
    std::this_thread::sleep_for(kAnswerPoll);
  }
  return call.wait();
}

}  // namespace psd

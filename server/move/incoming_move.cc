#include "server/move/incoming_move.h"

#include <algorithm>
#include <new>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/text/text.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/departed.h"

namespace psd {
namespace {

/// Whether both are the same daemon, perhaps restarted, or the same replica set. A lead that starts a move
/// has not moved away, so no earlier move from it will be committed.
bool sameLead(const MoveLead& one, const MoveLead& other) {
  if (one.daemon == 0 || one.daemon == other.daemon) return true;  // 0: the earlier lead is unknown
  return std::ranges::find_first_of(one.addresses, other.addresses) != one.addresses.end();
}

/// Path of a file of a part.
std::string placeOf(uint32_t part, const std::string& path) { return fmt::format("{}/{}", part, path); }

}  // namespace

Status IncomingMove::look() {
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {};
  PSD_ASSIGN_OR_RETURN(const auto mark, readMoveMark(env_, durability.path, kArrivingName));
  if (!mark) return {};
  placed_ = mark->move;
  lead_ = mark->lead;
  unread_ = true;
  spdlog::warn(
      "the folder's model arrived by a move that is not known to be committed: joins are rejected until the "
      "source's lead, a trainer or psd move confirms it");
  startPolling();
  return {};
}

std::optional<Error> IncomingMove::rejectionReason() const {
  if (receiving_ == 0 && placed_ == 0) return {};
  return Error{ErrorCode::unavailable,
               "the model is being moved here from other daemons, and the move is not known to be committed"};
}

Status IncomingMove::begin(uint64_t move, uint32_t parts, bool beats) {
  const auto refused = [](const std::string& why) { return Status(ErrorCode::invalidArgument, why); };
  if (move == 0 || parts > kPartitionsMax) return refused("not a valid move");
  if (parts == 0) {
    if (move == placed_ || move == committed_) return {};
    return {ErrorCode::notReady, "the model here is not from this move"};
  }
  if (const auto closed = help_.closed()) return *closed;
  if (config_.model) return refused("`model` is set in this daemon's configuration: start it without");
  if (coordinator_.end().requested()) return coordinator_.end().error();
  if (help_.reloading()) return {ErrorCode::notReady, "a reload is in progress; try again"};
  if (work_ == Work::forgetting) {
    return {ErrorCode::notReady, "the remains of a previous move are being removed; try again"};
  }
  if (receiving_ != 0 || work_ != Work::none || committing_ != nullptr) {
    return {ErrorCode::notReady, "another move to this daemon is in progress"};
  }
  if (placed_ == 0 && (host_.hasModel() || !coordinator_.ranks().empty())) {
    return refused("this daemon has a model already; a move needs targets without one");
  }
  receiving_ = move;
  if (gone_ == move) gone_ = 0;  // it is repeated
  checked_ = false;
  files_ = std::make_shared<MemoryFiles>(host_.config().limits.arrivingBytes);
  held_ = files_;
  paths_.assign(parts, "");
  if (beats) {
    beats_.watch([this, move] { abandon(move); });
  } else {
    beats_.end();
  }
  return {};
}

void IncomingMove::onHeartbeat(uint64_t move) {
  if (move == receiving_ || move == placed_) beats_.onHeartbeat();
}

MoveOutcome IncomingMove::outcome(uint64_t move) const {
  if (move == 0) return MoveOutcome::unknown;
  if (move == committed_) return MoveOutcome::counts;
  if (move == receiving_ || move == placed_) return MoveOutcome::underWay;
  return MoveOutcome::unknown;
}

std::vector<std::string> IncomingMove::cameFrom() const {
  return committed_ != 0 ? lead_.addresses : std::vector<std::string>();
}

uint64_t IncomingMove::held() const {
  const auto files = held_.lock();
  return files ? files->held() : 0;
}

Status IncomingMove::check(uint64_t move, const MoveTerms& terms, const ModelSpec& whole) {
  PSD_RETURN_IF_ERROR(checkUnderWay(move));
  checked_ = false;
  if (placed_ != 0 && !sameLead(lead_, terms.lead)) {
    return {ErrorCode::notReady,
            fmt::format("the model here arrived by a move from the daemons whose lead is {}, and may be "
                        "committed: they decide; or discard it by starting this daemon over an empty folder",
                        joined(lead_.addresses, ", "))};
  }
  PSD_RETURN_IF_ERROR(checkMove(terms, whole, host_));
  checked_ = true;
  worldSize_ = terms.worldSize;
  nextLead_ = terms.lead;
  return {};
}

Status IncomingMove::checkUnderWay(uint64_t move) const {
  if (move == receiving_ && move != 0) return {};
  return {ErrorCode::notReady, "this move is not in progress here"};
}

Status IncomingMove::image(uint64_t move, uint32_t part, const ImagePart& piece) {
  PSD_RETURN_IF_ERROR(checkUnderWay(move));
  if (part >= paths_.size() || !paths_[part].empty()) {
    return {ErrorCode::invalidArgument, "there is no such part, or it was whole already"};
  }
  try {
    const std::string path = placeOf(part, piece.path);
    const Status kept = piece.renamedTo.empty() ? files_->append(path, piece.bytes)
                                                : files_->rename(path, placeOf(part, piece.renamedTo));
    if (!files_->full()) return kept;
    return {ErrorCode::overloaded,
            fmt::format("the model from the other daemons needs more than limits.arriving_bytes ({}); psd "
                        "set changes it",
                        host_.config().limits.arrivingBytes)};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::overloaded, "out of memory for the model from the other daemons"};
  }
}

Status IncomingMove::imageDone(uint64_t move, uint32_t part, const std::string& path) {
  PSD_RETURN_IF_ERROR(checkUnderWay(move));
  if (part >= paths_.size() || !paths_[part].empty() || path.empty()) {
    return {ErrorCode::invalidArgument, "there is no such part, or it was whole already"};
  }
  paths_[part] = placeOf(part, path);
  return {};
}

Status IncomingMove::checkRanks(const MovedTrainers& trainers) const {
  const size_t most = host_.config().limits.connections;
  if (trainers.departed.worldSize != worldSize_) {
    return {ErrorCode::invalidArgument, "the trainers' world size differs from the one announced before"};
  }
  if (trainers.departed.ranks.size() <= most && trainers.ranks.size() <= most) return {};
  return {ErrorCode::invalidArgument, fmt::format("limits.connections allows {} ranks", most)};
}

kj::Promise<Result<uint64_t>> IncomingMove::settle(uint64_t move, MovedTrainers trainers) {
  using Outcome = Result<uint64_t>;
  if (Status under = checkUnderWay(move); !under.ok()) return Outcome(under.error());
  const bool all = std::ranges::none_of(paths_, [](const std::string& path) { return path.empty(); });
  if (!all || work_ != Work::none)
    return Outcome(ErrorCode::notReady, "not all parts of the model have arrived");
  if (!checked_)
    return Outcome(ErrorCode::notReady, "the model was not checked for compatibility with this daemon");
  if (Status fits = checkRanks(trainers); !fits.ok()) return Outcome(fits.error());
  work_ = Work::placing;
  lead_ = nextLead_;
  trainers_ = std::move(trainers);
  return host_.makePartition(std::exchange(files_, nullptr), std::exchange(paths_, {}))
      .then([this, move](Result<ParameterHost::Arrived> arrived) -> kj::Promise<Status> {
        if (!arrived.ok()) return arrived.status();
        return installModel(move, *std::move(arrived));
      })
      .then(
          [this, move](const Status& status) -> kj::Promise<Outcome> {
            if (!status.ok()) return undo(status.error());
            return placed(move);
          },
          [this](kj::Exception&& exception) -> kj::Promise<Outcome> {  // no thread could be started
            return undo({ErrorCode::overloaded, exception.getDescription().cStr()});
          });
}

Result<uint64_t> IncomingMove::placed(uint64_t move) {
  const bool unasked = std::exchange(work_, Work::none) == Work::placingUnasked;
  receiving_ = 0;
  placed_ = move;
  if (unasked) startPolling();
  const ParameterStore& store = *host_.models().model()->store;
  uint64_t rows = 0;
  for (size_t i = 0; i < store.rowShardCount(); i++) rows += store.rowShard(i).size().rows;
  return rows;
}

kj::Promise<Status> IncomingMove::clean() {
  return background_
      .run<Status>([this]() -> Status {
        host_.stopSaving();
        const DurabilityConfig& durability = config_.durability;
        if (!durability.enabled()) return {};
        // The mark last: without it, a daemon started over the folder would serve the remains.
        PSD_RETURN_IF_ERROR(removeCheckpoints(env_, durability.path));
        PSD_RETURN_IF_ERROR(removeDeparted(env_, durability.path));
        return removeMoveMark(env_, durability.path, kArrivingName);
      })
      .catch_([](kj::Exception&& exception) {  // no thread could be started
        return Status(ErrorCode::overloaded, exception.getDescription().cStr());
      });
}

kj::Promise<Result<uint64_t>> IncomingMove::undo(Error why) {
  placed_ = receiving_;
  receiving_ = 0;
  return forget(placed_).then([this, why = std::move(why)](const Status& forgotten) -> Result<uint64_t> {
    if (!forgotten.ok()) startPolling();
    return why;
  });
}

kj::Promise<Status> IncomingMove::forget(uint64_t move) {
  work_ = Work::forgetting;  // joins are rejected until everything is removed
  gone_ = move;
  host_.drop();
  return clean().then([this, move](Status cleaned) -> Status {
    work_ = Work::none;
    if (cleaned.ok() && std::exchange(unread_, false)) cleaned = help_.prepare();
    if (!cleaned.ok()) {
      spdlog::error("the remains of an aborted move cannot be removed from the folder: {}",
                    cleaned.message());
      return cleaned;
    }
    placed_ = 0;
    trainers_.reset();
    const char* const line = "the move of a model to this daemon was aborted; nothing of it is left";
    spdlog::info("{}", line);
    coordinator_.events().add("moving", line);
    return {};
  });
}

kj::Promise<Status> IncomingMove::installModel(uint64_t move, ParameterHost::Arrived arrived) {
  const auto marked = [this, move, lead = lead_, unread = unread_]() -> Status {
    if (!config_.durability.enabled()) return {};
    PSD_RETURN_IF_ERROR(writeMoveMark(env_, config_.durability.path, kArrivingName, {move, {}, lead}));
    // Checkpoints of a previous move would count as newer.
    return unread ? removeCheckpoints(env_, config_.durability.path) : Status();
  };
  auto kept = std::make_shared<ParameterHost::Arrived>(std::move(arrived));
  return background_.run<Status>(marked).then([this, kept](Status status) -> kj::Promise<Status> {
    if (!status.ok()) return status;
    unread_ = false;
    return host_.installModel(std::move(*kept), trainers_->departed);
  });
}

kj::Promise<Status> IncomingMove::commit(uint64_t move) {
  if (move != 0 && move == committed_) return Status();
  if (move == 0 || move != placed_ || move == gone_ || work_ != Work::none)
    return Status(ErrorCode::notReady, "the model here is not from this move");
  KJ_IF_MAYBE (running, committing_) return running->addBranch();
  if (unread_) {
    if (Status read = help_.prepare(); !read.ok()) return read;
    unread_ = false;
  }
  const auto unmark = [this]() -> Status {
    if (!config_.durability.enabled()) return {};
    return removeMoveMark(env_, config_.durability.path, kArrivingName);
  };
  auto done = background_.run<Status>(unmark)
                  .then(
                      [this, move](Status status) {
                        if (status.ok()) open(move);
                        return status;
                      },
                      [](kj::Exception&& exception) {  // no thread could be started
                        return Status(ErrorCode::overloaded, exception.getDescription().cStr());
                      })
                  .fork();
  auto mine = done.addBranch();
  forgetting_ =
      done.addBranch().then([this](const Status&) { committing_ = nullptr; }).eagerlyEvaluate(nullptr);
  committing_ = kj::mv(done);
  return mine;
}

void IncomingMove::open(uint64_t move) {
  abandon(receiving_);  // another move that was in progress
  beats_.end();
  placed_ = 0;
  committed_ = move;
  if (trainers_) {
    PriorRun prior{.hasValues = true, .continuesRun = true, .ranks = trainers_->ranks, .departed = {}};
    if (config_.exitWhenDone) prior.departed = trainers_->departed;
    coordinator_.begin(prior);
  }
  spdlog::info("the model has moved here from other daemons");
  coordinator_.events().add("serving", "the model has moved here from other daemons");
}

kj::Promise<Status> IncomingMove::giveUp(uint64_t move) {
  if (move == 0 || (move == gone_ && move != placed_)) return Status();
  if (move == receiving_) {
    if (work_ != Work::none) return Status(ErrorCode::notReady, "the model is being put in place");
    abandon(move);
    return Status();
  }
  if (move != placed_ || receiving_ != 0 || work_ != Work::none || committing_ != nullptr) {
    return Status(ErrorCode::notReady, "the model here is not from this move");
  }
  return forget(move);
}

void IncomingMove::abandon(uint64_t move) {
  if (move == 0) return;
  if (move == placed_) return startPolling();
  if (move != receiving_) return;
  if (work_ == Work::placing) work_ = Work::placingUnasked;
  if (work_ != Work::none) return;
  receiving_ = 0;
  files_ = nullptr;
  paths_.clear();
}

// --- Outcome of the move ---------------------------------------------------------------------------------

void IncomingMove::startPolling() {
  if (asks_ == placed_ || lead_.daemon == 0) return;
  asks_ = placed_;
  asking_ = pollOutcome(placed_, kFirstPollPause).eagerlyEvaluate([](kj::Exception&& exception) {
    spdlog::error("polling the outcome of a move failed: {}", exception.getDescription().cStr());
  });
}

kj::Promise<void> IncomingMove::pollOutcome(uint64_t move, kj::Duration pause) {
  return timer_.afterDelay(pause)
      .then([this, move]() -> kj::Promise<bool> {
        if (move != placed_) return true;
        return background_
            .run<Result<MoveOutcome>>([ask = help_.ask, lead = lead_, move] { return ask(lead, move); })
            .catch_([](kj::Exception&& exception) -> Result<MoveOutcome> {  // no thread could be started
              return Error{ErrorCode::overloaded, exception.getDescription().cStr()};
            })
            .then([this, move](const Result<MoveOutcome>& outcome) { return handleOutcome(move, outcome); });
      })
      .then([this, move, pause](bool known) -> kj::Promise<void> {
        if (known) return kj::READY_NOW;
        return pollOutcome(move, std::min(2 * pause, kMaxPollPause));
      });
}

kj::Promise<bool> IncomingMove::handleOutcome(uint64_t move, const Result<MoveOutcome>& outcome) {
  if (move != placed_) return true;
  // Another move is arriving meanwhile: its sender has asked the lead, too.
  if (!outcome.ok() || receiving_ != 0 || work_ != Work::none || committing_ != nullptr) return false;
  if (*outcome == MoveOutcome::counts) return commit(move).then([](const Status& done) { return done.ok(); });
  if (*outcome == MoveOutcome::stays) return forget(move).then([](const Status& done) { return done.ok(); });
  return false;
}

}  // namespace psd

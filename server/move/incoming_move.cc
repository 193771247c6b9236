#include "server/move/incoming_move.h"

#include <algorithm>
#include <new>
#include <utility>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/text/text.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/departed.h"
#include "server/config/store_rules.h"

namespace psd {
namespace {

/// Path of a file of a part.
std::string placeOf(uint32_t part, const std::string& path) { return fmt::format("{}/{}", part, path); }

}  // namespace

Status IncomingMove::look() {
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {};
  PSD_ASSIGN_OR_RETURN(const auto mark, readMoveMark(env_, durability.path, kArrivingName));
  if (!mark) return {};
  serving_.changeIncoming([&](auto& state) { state.found(mark->move, mark->lead); });
  versions_.found(mark->move);
  spdlog::warn(
      "the folder's model arrived by a move that is not known to be committed: joins are rejected until the "
      "source's lead, a trainer or psd move confirms it");
  askLead();
  return {};
}

Status IncomingMove::begin(uint64_t move, uint32_t parts, bool beats) {
  const auto refused = [](const std::string& why) { return Status(ErrorCode::invalidArgument, why); };
  if (move == 0 || parts > kPartitionsMax) return refused("not a valid move");
  if (parts == 0) {
    const IncomingMoveState& state = serving_.incoming();
    if (move == state.inPlace() || move == state.committedMove()) return {};
    return {ErrorCode::notReady, "the model here is not from this move"};
  }
  PSD_RETURN_IF_ERROR(serving_.mayArrive());
  if (config_.servesOnlyVersions()) return storeHasNoModel();
  if (config_.model) return refused("`model` is set in this daemon's configuration: start it without");
  const bool occupied = host_.hasModel() || !coordinator_.ranks().empty();
  PSD_RETURN_IF_ERROR(serving_.changeIncoming([&](auto& state) { return state.begin(move, occupied); }));
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
  if (move == serving_.incoming().receiving() || move == serving_.incoming().inPlace()) beats_.onHeartbeat();
}

std::vector<std::string> IncomingMove::cameFrom() const {
  return serving_.incoming().arrived() ? serving_.incoming().lead().addresses : std::vector<std::string>();
}

uint64_t IncomingMove::held() const {
  const auto files = held_.lock();
  return (files ? files->held() : 0) + versions_.held();
}

Status IncomingMove::check(uint64_t move, const MoveTerms& terms, const ModelSpec& whole) {
  PSD_RETURN_IF_ERROR(serving_.changeIncoming([&](auto& state) { return state.propose(move, terms.lead); }));
  PSD_RETURN_IF_ERROR(checkMove(terms, whole, host_));
  if (terms.versions) PSD_RETURN_IF_ERROR(versions_.begin(move));
  serving_.changeIncoming([](auto& state) { state.accept(); });
  worldSize_ = terms.worldSize;
  return {};
}

Status IncomingMove::image(uint64_t move, uint32_t part, const ImagePart& piece) {
  PSD_RETURN_IF_ERROR(serving_.incoming().checkReceiving(move));
  if (part >= paths_.size() || !paths_[part].empty()) {
    return {ErrorCode::invalidArgument, "there is no such part, or it was whole already"};
  }
  try {
    const std::string path = placeOf(part, piece.path);
    const Status kept = piece.renamedTo.empty() ? files_->append(path, piece.bytes)
                                                : files_->rename(path, placeOf(part, piece.renamedTo));
    const uint64_t most = host_.config().limits.arrivingBytes;
    const bool full = files_->full() || (versions_.held() > 0 && held() > most);
    if (!full) return kept;
    return {ErrorCode::overloaded,
            fmt::format("the model from the other daemons needs more than limits.arriving_bytes ({}); psd "
                        "set changes it",
                        most)};
  } catch (const std::bad_alloc&) {
    return {ErrorCode::overloaded, "out of memory for the model from the other daemons"};
  }
}

Status IncomingMove::imageDone(uint64_t move, uint32_t part, const std::string& path) {
  PSD_RETURN_IF_ERROR(serving_.incoming().checkReceiving(move));
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

Status IncomingMove::versionImage(uint64_t move, std::span<const std::byte> bytes) {
  PSD_RETURN_IF_ERROR(serving_.incoming().checkReceiving(move));
  if (versions_.move() != move) return {ErrorCode::notReady, "no published versions arrive with this move"};
  // The parts and the versions share the limit.
  const uint64_t most = host_.config().limits.arrivingBytes, parts = held() - versions_.held();
  return versions_.image(bytes, most - std::min(most, parts));
}

kj::Promise<Status> IncomingMove::versionDone(uint64_t move, uint64_t oldest) {
  if (Status receives = versionImage(move, {}); !receives.ok()) return receives;
  return versions_.imageDone(oldest);
}

Status IncomingMove::checkVersions(uint64_t move, const std::optional<VersionsContinuation>& versions) const {
  if (versions.has_value() == (versions_.move() == move)) return {};
  return {ErrorCode::invalidArgument, "the published versions that were announced have not arrived"};
}

kj::Promise<Status> IncomingMove::installVersions() {
  if (!continuation_) return Status();
  return versions_.install(*std::exchange(continuation_, {}));
}

kj::Promise<Result<uint64_t>> IncomingMove::install(uint64_t move, MovedTrainers trainers,
                                                    std::optional<VersionsContinuation> versions) {
  using Outcome = Result<uint64_t>;
  if (Status under = serving_.incoming().checkReceiving(move); !under.ok()) return Outcome(under.error());
  const bool all = std::ranges::none_of(paths_, [](const std::string& path) { return path.empty(); });
  if (!all) return Outcome(ErrorCode::notReady, "not all parts of the model have arrived");
  Status fits = checkRanks(trainers);
  if (fits.ok()) fits = checkVersions(move, versions);
  if (!fits.ok()) return Outcome(fits.error());
  if (Status may = serving_.changeIncoming([&](auto& state) { return state.place(move); }); !may.ok()) {
    return Outcome(may.error());
  }
  trainers_ = std::move(trainers);
  continuation_ = std::move(versions);
  return host_.makePartition(std::exchange(files_, nullptr), std::exchange(paths_, {}))
      .then([this, move](Result<ParameterHost::Arrived> arrived) -> kj::Promise<Status> {
        if (!arrived.ok()) return arrived.status();
        return installModel(move, *std::move(arrived));
      })
      .then(
          [this](const Status& status) -> kj::Promise<Outcome> {
            if (!status.ok()) return undo(status.error());
            return placed();
          },
          [this](kj::Exception&& exception) -> kj::Promise<Outcome> {  // no thread could be started
            return undo({ErrorCode::overloaded, exception.getDescription().cStr()});
          });
}

Result<uint64_t> IncomingMove::placed() {
  if (serving_.changeIncoming([](auto& state) { return state.placed(); })) askLead();
  const ParameterStore& store = *host_.models().model()->store;
  uint64_t rows = 0;
  for (size_t i = 0; i < store.rowShardCount(); i++) rows += store.rowShard(i).size().rows;
  return rows;
}

kj::Promise<Status> IncomingMove::clean() {
  const auto removeFiles = [this]() -> Status {
    host_.stopSaving();
    const DurabilityConfig& durability = config_.durability;
    if (!durability.enabled()) return {};
    // The mark last: without it, a daemon started over the folder would serve the remains.
    PSD_RETURN_IF_ERROR(removeCheckpoints(env_, durability.path));
    PSD_RETURN_IF_ERROR(removeDeparted(env_, durability.path));
    return removeMoveMark(env_, durability.path, kArrivingName);
  };
  return versions_.cancel().then([this, removeFiles](Status cancelled) -> kj::Promise<Status> {
    if (!cancelled.ok()) return cancelled;
    return background_.tryRun<Status>(removeFiles);
  });
}

kj::Promise<Result<uint64_t>> IncomingMove::undo(Error why) {
  serving_.changeIncoming([](auto& state) { state.fail(); });
  return removeModel().then([this, why = std::move(why)](const Status& removed) -> Result<uint64_t> {
    if (!removed.ok()) askLead();
    return why;
  });
}

kj::Promise<Status> IncomingMove::forget() {
  serving_.changeIncoming([](auto& state) { state.forget(); });
  return removeModel();
}

kj::Promise<Status> IncomingMove::removeModel() {
  host_.drop();
  return clean().then([this](Status cleaned) -> Status {
    // The folder may have state from before the move.
    if (cleaned.ok() && serving_.incoming().unread()) cleaned = daemon_.prepare();
    serving_.changeIncoming([&](auto& state) { state.forgotten(cleaned.ok()); });
    if (!cleaned.ok()) {
      spdlog::error("the remains of an aborted move cannot be removed from the folder: {}",
                    cleaned.message());
      return cleaned;
    }
    trainers_.reset();
    const char* const line = "the move of a model to this daemon was aborted; nothing of it is left";
    spdlog::info("{}", line);
    coordinator_.events().add("moving", line);
    return {};
  });
}

kj::Promise<Status> IncomingMove::installModel(uint64_t move, ParameterHost::Arrived arrived) {
  const IncomingMoveState& state = serving_.incoming();
  const auto marked = [this, move, lead = state.lead(), unread = state.unread()]() -> Status {
    if (!config_.durability.enabled()) return {};
    PSD_RETURN_IF_ERROR(writeMoveMark(env_, config_.durability.path, kArrivingName, {move, {}, lead}));
    // Checkpoints of a previous move would count as newer.
    return unread ? removeCheckpoints(env_, config_.durability.path) : Status();
  };
  auto kept = std::make_shared<ParameterHost::Arrived>(std::move(arrived));
  return background_.run<Status>(marked).then([this, kept](Status status) -> kj::Promise<Status> {
    if (!status.ok()) return status;
    serving_.changeIncoming([](auto& state) { state.read(); });
    return installVersions().then([this, kept](Status installed) -> kj::Promise<Status> {
      if (!installed.ok()) return installed;
      return host_.installModel(std::move(*kept), trainers_->departed);
    });
  });
}

kj::Promise<Status> IncomingMove::commit(uint64_t move) {
  if (serving_.incoming().outcome(move) == MoveOutcome::committed) return Status();
  KJ_IF_MAYBE (running, committing_) {
    if (move == serving_.incoming().inPlace()) return running->addBranch();
  }
  if (Status may = serving_.incoming().mayCommit(move); !may.ok()) return may;
  if (serving_.incoming().unread()) {
    if (Status read = daemon_.prepare(); !read.ok()) return read;
    serving_.changeIncoming([](auto& state) { state.read(); });
  }
  serving_.changeIncoming([](auto& state) { state.commit(); });
  const auto unmark = [this]() -> Status {
    if (!config_.durability.enabled()) return {};
    return removeMoveMark(env_, config_.durability.path, kArrivingName);
  };
  auto done = background_.tryRun<Status>(unmark)
                  .then([this](Status status) {
                    serving_.changeIncoming([&](auto& state) { state.committed(status.ok()); });
                    if (status.ok()) open();
                    return status;
                  })
                  .fork();
  auto mine = done.addBranch();
  forgetting_ =
      done.addBranch().then([this](const Status&) { committing_ = nullptr; }).eagerlyEvaluate(nullptr);
  committing_ = kj::mv(done);
  return mine;
}

void IncomingMove::open() {
  dropReceived();  // of another move that was in progress
  if (versions_.move() == serving_.incoming().committedMove()) {
    versions_.show();
  } else {
    static_cast<void>(versions_.cancel());
  }
  beats_.end();
  if (trainers_) {
    PriorRun prior{.hasValues = true, .continuesRun = true, .ranks = trainers_->ranks, .departed = {}};
    if (config_.exitWhenDone) prior.departed = trainers_->departed;
    coordinator_.begin(prior);
  }
  spdlog::info("the model has moved here from other daemons");
  coordinator_.events().add("serving", "the model has moved here from other daemons");
}

kj::Promise<Status> IncomingMove::giveUp(uint64_t move) {
  using GiveUp = IncomingMoveState::GiveUp;
  const auto next = serving_.changeIncoming([move](auto& state) { return state.giveUp(move); });
  if (!next.ok()) return next.status();
  if (*next == GiveUp::drop) dropReceived(move);
  return *next == GiveUp::forget ? forget() : kj::Promise<Status>(Status());
}

void IncomingMove::abandon(uint64_t move) {
  using Abandon = IncomingMoveState::Abandon;
  const Abandon next = serving_.changeIncoming([move](auto& state) { return state.abandon(move); });
  if (next == Abandon::ask) askLead();
  if (next == Abandon::drop) dropReceived(move);
}

void IncomingMove::dropReceived(uint64_t move) {
  dropReceived();
  if (versions_.move() == move) static_cast<void>(versions_.cancel());
}

void IncomingMove::dropReceived() {
  files_ = nullptr;
  paths_.clear();
}

void IncomingMove::askLead() {
  const uint64_t move = serving_.incoming().inPlace();
  const MoveLead& lead = serving_.incoming().lead();
  if (lead.daemon == 0) return;
  poll_.start(move, lead, [this, move](MoveOutcome outcome) -> kj::Promise<bool> {
    using Next = IncomingMoveState::Next;
    const auto done = [](const Status& status) { return status.ok(); };
    switch (serving_.incoming().answered(move, outcome)) {
      case Next::done: return true;
      case Next::commit: return commit(move).then(done);
      case Next::forget: return forget().then(done);
      case Next::again: break;
    }
    return false;
  });
}

}  // namespace psd

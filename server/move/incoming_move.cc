#include "server/move/incoming_move.h"

#include <algorithm>
#include <new>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/departed.h"

namespace psd {
namespace {

/// Where the pieces of a part lie.
std::string placeOf(uint32_t part, const std::string& path) { return fmt::format("{}/{}", part, path); }

}  // namespace

Status IncomingMove::look() {
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {};
  PSD_ASSIGN_OR_RETURN(const auto mark, readMoveMark(env_, durability.path, kArrivingName));
  if (!mark) return {};
  placed_ = mark->move;
  spdlog::warn(
      "what is here came from other daemons by a move that is not known to be done: nobody is let in "
      "until a trainer or psd move says that it is");
  return {};
}

std::optional<Error> IncomingMove::turnedAway() const {
  if (receiving_ == 0 && placed_ == 0) return {};
  return Error{ErrorCode::unavailable,
               "the model is on its way here from other daemons, and not known to have left them"};
}

Status IncomingMove::begin(uint64_t move, uint32_t parts) {
  const auto refused = [](const std::string& why) { return Status(ErrorCode::invalidArgument, why); };
  if (move == 0 || parts > kPartitionsMax) return refused("that is no move");
  if (parts == 0) {
    if (move == placed_ || move == committed_) return {};
    return {ErrorCode::notReady, "what is here is not of this move"};
  }
  if (config_.engine) return refused("a daemon with `engine` takes no model from others: start it without");
  if (config_.model) return refused("`model` in this daemon's configuration names a model: start it without");
  if (coordinator_.end().requested()) return coordinator_.end().error();
  if (reloading_()) return {ErrorCode::notReady, "a reload is under way; try again"};
  if (receiving_ != 0 || settling_ || committing_ != nullptr) {
    return {ErrorCode::notReady, "another move to this daemon is under way"};
  }
  if (placed_ == 0 && (host_.hasModel() || !coordinator_.ranks().empty())) {
    return refused("this daemon has a model already; a move is to daemons that have none");
  }
  receiving_ = move;
  files_ = std::make_shared<MemoryFiles>();
  paths_.assign(parts, "");
  return {};
}

Status IncomingMove::checkUnderWay(uint64_t move) const {
  if (move == receiving_ && move != 0) return {};
  return {ErrorCode::notReady, "this move is not under way here"};
}

Status IncomingMove::image(uint64_t move, uint32_t part, const ImagePart& piece) {
  PSD_RETURN_IF_ERROR(checkUnderWay(move));
  if (part >= paths_.size() || !paths_[part].empty()) {
    return {ErrorCode::invalidArgument, "there is no such part, or it was whole already"};
  }
  try {
    if (!piece.renamedTo.empty())
      return files_->rename(placeOf(part, piece.path), placeOf(part, piece.renamedTo));
    return files_->append(placeOf(part, piece.path), piece.bytes);
  } catch (const std::bad_alloc&) {
    return {ErrorCode::overloaded, "there is no memory for what the other daemons give"};
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

kj::Promise<Result<uint64_t>> IncomingMove::settle(uint64_t move, MovedTrainers trainers) {
  using Outcome = Result<uint64_t>;
  if (Status under = checkUnderWay(move); !under.ok()) return Outcome(under.error());
  const bool all = std::ranges::none_of(paths_, [](const std::string& path) { return path.empty(); });
  if (!all || settling_) return Outcome(ErrorCode::notReady, "not all parts of the model are here");
  const uint32_t worldSize = trainers.departed.worldSize;
  if (config_.worldSize && worldSize != 0 && worldSize != config_.worldSize->max) {
    return Outcome(
        ErrorCode::invalidArgument,
        fmt::format("world_size: {} here, and {} at the daemons of before; trainers would not be let in",
                    config_.worldSize->max, worldSize));
  }
  settling_ = true;
  trainers_ = std::move(trainers);
  return host_.makePartition(std::exchange(files_, nullptr), std::exchange(paths_, {}))
      .then([this, move](Result<ParameterHost::Arrived> arrived) -> kj::Promise<Status> {
        if (!arrived.ok()) return arrived.status();
        return takeIn(move, *std::move(arrived));
      })
      .then(
          [this, move](const Status& status) -> kj::Promise<Outcome> {
            if (!status.ok()) return undo(status.error());
            settling_ = false;
            receiving_ = 0;
            placed_ = move;
            const ParameterStore& store = *host_.models().model()->store;
            uint64_t rows = 0;
            for (size_t i = 0; i < store.rowShardCount(); i++) rows += store.rowShard(i).size().rows;
            return Outcome(rows);
          },
          [this](kj::Exception&& exception) -> kj::Promise<Outcome> {  // no thread
            return undo({ErrorCode::overloaded, exception.getDescription().cStr()});
          });
}

kj::Promise<Result<uint64_t>> IncomingMove::undo(Error why) {
  host_.drop();
  placed_ = 0;
  const auto clean = [this]() -> Status {
    host_.stopSaving();
    if (!config_.durability.enabled()) return {};
    // The mark last, without which a daemon that is started over the folder would serve what is left.
    PSD_RETURN_IF_ERROR(removeCheckpoints(env_, config_.durability.path));
    PSD_RETURN_IF_ERROR(removeDeparted(env_, config_.durability.path));
    return removeMoveMark(env_, config_.durability.path, kArrivingName);
  };
  return background_.run<Status>(clean)
      .catch_([](kj::Exception&& exception) {
        return Status(ErrorCode::overloaded, exception.getDescription().cStr());
      })
      .then([this, why = std::move(why)](const Status& status) -> Result<uint64_t> {
        if (!status.ok()) spdlog::error("what is left of a move stays in the folder: {}", status.message());
        settling_ = false;
        receiving_ = 0;
        return why;
      });
}

kj::Promise<Status> IncomingMove::takeIn(uint64_t move, ParameterHost::Arrived arrived) {
  const auto marked = [this, move]() -> Status {
    if (!config_.durability.enabled()) return {};
    return writeMoveMark(env_, config_.durability.path, kArrivingName, {move, {}});
  };
  auto kept = std::make_shared<ParameterHost::Arrived>(std::move(arrived));
  return background_.run<Status>(marked).then([this, kept](Status status) -> kj::Promise<Status> {
    if (!status.ok()) return status;
    return host_.takeIn(std::move(*kept), trainers_->departed);
  });
}

kj::Promise<Status> IncomingMove::commit(uint64_t move) {
  if (move != 0 && move == committed_) return Status();
  if (move == 0 || move != placed_) return Status(ErrorCode::notReady, "what is here is not of this move");
  KJ_IF_MAYBE (running, committing_) return running->addBranch();
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
                      [](kj::Exception&& exception) {  // no thread
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
  placed_ = 0;
  committed_ = move;
  if (trainers_) {
    PriorRun prior{.hasValues = true, .goesOn = true, .ranks = trainers_->ranks, .departed = {}};
    if (config_.exitWhenDone) prior.departed = trainers_->departed;
    coordinator_.begin(prior);
  }
  spdlog::info("the model has moved here from other daemons");
  coordinator_.events().add("serving", "the model has moved here from other daemons");
}

void IncomingMove::abandon(uint64_t move) {
  if (move != receiving_ || settling_) return;
  receiving_ = 0;
  files_ = nullptr;
  paths_.clear();
}

}  // namespace psd

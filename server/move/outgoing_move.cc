#include "server/move/outgoing_move.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/config/move_rules.h"

namespace psd {
namespace {

std::string textOf(const DaemonAddresses& places) {
  return joined(places, " ", [](const auto& addresses) { return joined(addresses, ","); });
}

/// The shard of a checkpoint's file; nothing: another kind of file.
std::optional<uint32_t> shardOf(const std::string& path) {
  constexpr std::string_view kPrefix = "shard-";
  const size_t slash = path.rfind('/');
  const std::string_view name = std::string_view(path).substr(slash == std::string::npos ? 0 : slash + 1);
  if (!name.starts_with(kPrefix)) return {};
  uint32_t shard = 0;
  const std::string_view number = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), shard);
  if (error != std::errc() || end == number.data()) return {};
  return shard;
}

}  // namespace

Status OutgoingMove::look() {
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {};
  PSD_ASSIGN_OR_RETURN(const auto mark, readMoveMark(env_, durability.path, kMovedName));
  if (!mark) return {};
  setAway({mark->move, mark->to});
  spdlog::warn("{}, as '{}/{}' says; {}", rejectionReason()->message, durability.path, kMovedName, remedy());
  return {};
}

void OutgoingMove::adopt(MoveMark mark) {
  setAway({mark.move, mark.to});
  logUnmarked(writeMark(mark).status);
  const std::string line = rejectionReason()->message;
  spdlog::warn("{}, as the cluster document says; {}", line, remedy());
  coordinator_.events().add("moving", line);
}

kj::Promise<MovedAway::Place> OutgoingMove::whenMoved() {
  if (MovedAway::Place place = away_.get(); place.move != 0) return place;
  if (coordinator_.end().requested()) return MovedAway::Place();
  auto moved = kj::newPromiseAndFulfiller<MovedAway::Place>();
  // Drops calls whose connections have closed.
  std::erase_if(waiting_, [](auto& each) { return !each->isWaiting(); });
  waiting_.push_back(kj::mv(moved.fulfiller));
  return kj::mv(moved.promise);
}

void OutgoingMove::setAway(const MovedAway::Place& place) {
  away_.set(place);
  resolveWaiters(place);
}

void OutgoingMove::resolveWaiters(const MovedAway::Place& place) {
  for (auto& each : std::exchange(waiting_, {})) each->fulfill(MovedAway::Place(place));
}

std::string OutgoingMove::remedy() const {
  const bool kept = config_.durability.enabled();
  const std::string mark = fmt::format("'{}/{}'", config_.durability.path, kMovedName);
  constexpr std::string_view kOld = " (which serves the old state from before the move)";
  if (!config_.engine) {
    return "to serve a model here again, start it " +
           (kept ? fmt::format("over an empty folder, or without {}{}", mark, kOld) : "again");
  }
  return fmt::format(
      "to serve a model here again, stop both replicas, remove the key '{}/plan' from the engine, "
      "and start them {}",
      config_.engine->prefix,
      kept ? fmt::format("over empty folders, or without {} and that of the other daemon{}", mark, kOld)
           : "again");
}

Error OutgoingMove::refusal() const {
  return {ErrorCode::invalidArgument, "a model has moved away from this daemon: " + remedy()};
}

std::optional<Error> OutgoingMove::rejectionReason() const {
  const MovedAway::Place away = away_.get();
  if (away.move == 0) return {};
  return Error{ErrorCode::standby, "the model has moved to " + textOf(away.to)};
}

Status OutgoingMove::mayBegin() const {
  if (const auto away = rejectionReason()) return *away;
  if (coordinator_.end().requested()) return coordinator_.end().error();
  if (mark_.move != 0) return {ErrorCode::notReady, "another move of the model is in progress"};
  if (gates_.reloading()) return {ErrorCode::notReady, "a reload is in progress; try again"};
  if (const auto closed = coordinator_.rejectionReason()) return *closed;
  if (!host_.models().ready()) return {ErrorCode::notReady, "the model has no values yet"};
  if (const std::set<Rank> awaited = coordinator_.awaited(); !awaited.empty()) {
    // They could not quiesce, nor could trainers that wait for this daemon.
    return {ErrorCode::notReady,
            fmt::format("rank {}, joined before this daemon was restarted, is not back yet; try again",
                        awaited.begin()->value)};
  }
  return {};
}

Result<MoveTerms> OutgoingMove::terms() const {
  PSD_RETURN_IF_ERROR(mayBegin());
  return ownTerms();
}

MoveTerms OutgoingMove::ownTerms() const {
  return {moveRules(host_.config().groups),
          coordinator_.worldSize(),
          coordinator_.askedCodecs(),
          {coordinator_.daemonId(), gates_.addresses()}};
}

MoveOutcome OutgoingMove::outcome(uint64_t move, uint64_t daemon) const {
  if (move == 0) return MoveOutcome::unknown;
  if (away_.get().move == move) return MoveOutcome::counts;
  if (daemon != coordinator_.daemonId()) return MoveOutcome::unknown;
  return move == mark_.move || move == undecided_ ? MoveOutcome::underWay : MoveOutcome::stays;
}

Status OutgoingMove::begin(uint64_t move, DaemonAddresses to, std::chrono::milliseconds most,
                           MoveStart begun) {
  PSD_RETURN_IF_ERROR(mayBegin());
  if (move == 0 || to.empty()) return {ErrorCode::invalidArgument, "not a valid move"};
  const auto daemons = static_cast<uint32_t>(to.size());
  mark_ = {move, std::move(to)};
  quiesced_ = committing_ = false;
  const std::string line = fmt::format("the model is about to move to {}", textOf(mark_.to));
  spdlog::info("{}", line);
  coordinator_.events().add("moving", line);
  coordinator_.startMove({move, daemons});
  deadline_ = timer_.afterDelay(most.count() * kj::MILLISECONDS)
                  .then([this, move, most] { abandon(move, "it took longer than " + durationText(most)); })
                  .eagerlyEvaluate(nullptr);
  lead_ = config_.daemons.index > 0 ? begun.lead : 0;
  if (begun.beats) beats_.watch([this, move] { abandon(move, "psd move no longer sends heartbeats"); });
  return {};
}

void OutgoingMove::onHeartbeat(uint64_t move) {
  if (move == mark_.move) beats_.onHeartbeat();
}

kj::Promise<Result<QuiescedModel>> OutgoingMove::whenQuiesced(uint64_t move) {
  using Outcome = Result<QuiescedModel>;
  if (move != mark_.move) return Outcome(ErrorCode::notReady, "this move is not in progress here");
  return coordinator_.pause()
      .whenAllQuiesced()
      .then([this, move](Status aside) -> kj::Promise<Status> {
        if (!aside.ok()) return aside;
        if (move != mark_.move) return Status(ErrorCode::notReady, "the move was aborted");
        closed_ = true;
        return gates_.close().then([](bool closed) {
          return closed
                     ? Status()
                     : Status(ErrorCode::notReady, "pushes in flight did not finish within limits.drain_ms");
        });
      })
      .then([this, move](const Status& status) -> Outcome {
        if (mark_.move == 0) openGates();  // it was aborted while they closed
        if (!status.ok()) return status.error();
        if (move != mark_.move) return Error{ErrorCode::notReady, "the move was aborted"};
        quiesced_ = true;
        return QuiescedModel{{coordinator_.departed(), coordinator_.ranks()}, ownTerms()};
      });
}

Status OutgoingMove::checkStill(uint64_t move) const {
  if (move == mark_.move && quiesced_ && !coordinator_.end().requested()) return {};
  return {ErrorCode::notReady, "the move was aborted, or its trainers are not quiesced yet"};
}

kj::Promise<Result<std::string>> OutgoingMove::give(uint64_t move, const Range& range,
                                                    std::shared_ptr<ImageStream> to) {
  using Outcome = Result<std::string>;
  if (Status still = checkStill(move); !still.ok()) return Outcome(still.error());
  const ParameterStore& store = *host_.models().model()->store;
  const uint64_t elements = ModelLayout(store.model()).totalElements();
  if (range.begin > elements || range.count > elements - range.begin) {
    return Outcome(ErrorCode::invalidArgument, "there are fewer elements here");
  }
  std::set<uint32_t> wanted;
  for (size_t i = 0; i < store.shardCount(); i++) {
    const ShardRange& has = store.shard(i).range();
    const uint64_t first = std::max(has.begin, range.begin);
    if (first < std::min(has.begin + has.count, range.begin + range.count)) wanted.insert(has.id.value);
  }
  return host_.giveTo(std::move(to), [wanted = std::move(wanted)](const std::string& path) {
    const auto shard = shardOf(path);
    return !shard || wanted.contains(*shard);
  });
}

kj::Promise<Status> OutgoingMove::commit(uint64_t move) {
  if (move != 0 && away_.get().move == move) return Status();
  if (Status still = checkStill(move); !still.ok()) return still;
  if (committing_) return Status(ErrorCode::notReady, "the move is being committed already");
  return decide();
}

kj::Promise<Status> OutgoingMove::decide() {
  const uint64_t move = mark_.move;
  committing_ = true;
  coordinator_.pause().decide(true);
  if (config_.engine) {
    return gates_.decide(mark_).then([this, move](const Result<bool>& counts) -> kj::Promise<Status> {
      if (counts.ok() && *counts) {
        return markFolder(mark_).then([this, move] { return decided(move, {Mark::written, {}}); });
      }
      // Not `unavailable`, which means that the outcome is unknown.
      return decided(
          move, {Mark::absent,
                 {ErrorCode::notReady, counts.ok() ? "another daemon has taken over" : counts.message()}});
    });
  }
  return background_.run<Writing>([this, mark = mark_] { return writeMark(mark); })
      .then(
          [this, move](const Writing& writing) { return decided(move, writing); },
          [this, move](kj::Exception&& exception) {  // no thread could be started
            return decided(move, {Mark::absent, {ErrorCode::overloaded, exception.getDescription().cStr()}});
          });
}

kj::Promise<void> OutgoingMove::markFolder(const MoveMark& mark) {
  return background_.run<Status>([this, mark] { return writeMark(mark).status; })
      .catch_([](kj::Exception&& exception) {  // no thread could be started
        return Status(ErrorCode::overloaded, exception.getDescription().cStr());
      })
      .then([](const Status& written) { logUnmarked(written); });
}

void OutgoingMove::logUnmarked(const Status& written) {
  if (written.ok()) return;
  spdlog::error("the move is recorded in the cluster document but not in the folder: {}", written.message());
}

OutgoingMove::Writing OutgoingMove::writeMark(const MoveMark& mark) const {
  const DurabilityConfig& durability = config_.durability;
  if (!durability.enabled()) return {Mark::written, {}};
  Status written = writeMoveMark(env_, durability.path, kMovedName, mark);
  if (written.ok()) return {Mark::written, {}};
  // The file may exist, but not durably.
  const bool gone = removeMoveMark(env_, durability.path, kMovedName).ok();
  return {gone ? Mark::absent : Mark::unknown, std::move(written)};
}

Status OutgoingMove::decided(uint64_t move, const Writing& writing) {
  committing_ = false;
  if (writing.mark == Mark::unknown) {
    // Trainers stay quiesced: the next daemon over the folder redirects or resumes, by what it finds there.
    undecided_ = mark_.move;
    mark_ = {};
    deadline_ = nullptr;
    const std::string line = fmt::format(
        "it is unknown whether the model has moved, as '{}/{}' can neither be written nor removed: {}",
        config_.durability.path, kMovedName, writing.status.message());
    coordinator_.requestStop(line, EndOf::daemon);
    return {ErrorCode::unavailable, line};
  }
  coordinator_.pause().decide(false);
  if (writing.mark == Mark::written) {
    leave();
  } else {
    abandon(move, writing.status.message());
  }
  return writing.status;
}

void OutgoingMove::openGates() {
  if (std::exchange(closed_, false)) gates_.open();
}

void OutgoingMove::leave() {
  const MoveMark mark = std::exchange(mark_, {});
  beats_.end();
  deadline_ = nullptr;
  setAway({mark.move, mark.to});
  const std::string line = rejectionReason()->message;
  coordinator_.endMove(mark.to);
  if (!coordinator_.end().requested()) coordinator_.requestStop(line);
}

void OutgoingMove::abandon(uint64_t move, const std::string& why) {
  if (move == 0 || move != mark_.move || committing_) return;
  const std::string missing = quiesced_ ? std::string() : coordinator_.pause().missing();
  const std::string line =
      fmt::format("the model stays here, the move was aborted: {}{}", why,
                  missing.empty() ? "" : fmt::format("; ranks not quiesced: {}", missing));
  spdlog::warn("{}", line);
  coordinator_.events().add("moving", line);
  const MoveMark mark = std::exchange(mark_, {});
  const bool wasStill = std::exchange(quiesced_, false);
  beats_.end();
  coordinator_.endMove({});
  openGates();
  if (wasStill && lead_ != 0 && gates_.ask) startPolling(mark);
}

// --- Outcome of a move that others decide -----------------------------------------------------------------

void OutgoingMove::startPolling(MoveMark mark) {
  asked_ = mark.move;
  MoveLead of{lead_, {}};
  for (const Address& address : config_.daemons.addresses.front()) of.addresses.push_back(address.toString());
  for (const auto& addresses : mark.to)
    of.addresses.insert(of.addresses.end(), addresses.begin(), addresses.end());
  asking_ =
      pollOutcome(std::move(mark), std::move(of), kFirstPollPause)
          .eagerlyEvaluate([](kj::Exception&& exception) {
            spdlog::error("polling the outcome of a move failed: {}", exception.getDescription().cStr());
          });
}

kj::Promise<void> OutgoingMove::pollOutcome(MoveMark mark, MoveLead of, kj::Duration pause) {
  return timer_.afterDelay(pause)
      .then([this, mark, of]() -> kj::Promise<bool> {
        if (mark.move != asked_) return true;
        return background_
            .run<Result<MoveOutcome>>([ask = gates_.ask, of, move = mark.move] { return ask(of, move); })
            .catch_([](kj::Exception&& exception) -> Result<MoveOutcome> {  // no thread could be started
              return Error{ErrorCode::overloaded, exception.getDescription().cStr()};
            })
            .then([this, mark](const Result<MoveOutcome>& outcome) { return handleOutcome(mark, outcome); });
      })
      .then(
          [this, mark = std::move(mark), of = std::move(of), pause](bool known) mutable -> kj::Promise<void> {
            if (known) return kj::READY_NOW;
            return pollOutcome(std::move(mark), std::move(of), std::min(2 * pause, kMaxPollPause));
          });
}

kj::Promise<bool> OutgoingMove::handleOutcome(const MoveMark& mark, const Result<MoveOutcome>& outcome) {
  if (mark.move != asked_) return true;
  // A later move that has started here proves nothing: the lead is the last to receive it.
  if (!outcome.ok() || mark_.move != 0) return false;
  if (*outcome == MoveOutcome::stays) return true;
  if (*outcome != MoveOutcome::counts) return false;
  mark_ = mark;
  return decide().then([](const Status& decided) { return decided.ok(); });
}

}  // namespace psd

#include "server/coordination/move_quiescence.h"

#include <algorithm>
#include <utility>

#include "common/text/text.h"
#include "common/types/bridge.h"

namespace psd {
namespace {

constexpr size_t kReasonBytesMax = 300;

}  // namespace

void MoveQuiescence::begin(const MoveNotice& notice) {
  notice_ = notice;
  impossible_.reset();
  auto asking = std::exchange(asking_, {});
  for (auto& [known, fulfiller] : asking) fulfiller->fulfill(MoveNotice(notice));
}

kj::Promise<MoveNotice> MoveQuiescence::whenAnnounced(uint64_t known) {
  if (underWay() && notice_.move != known) return notice_;
  auto asked = kj::newPromiseAndFulfiller<MoveNotice>();
  // Drops calls whose trainers have departed.
  std::erase_if(asking_, [](auto& entry) { return !entry.second->isWaiting(); });
  asking_.emplace_back(known, kj::mv(asked.fulfiller));
  return kj::mv(asked.promise);
}

kj::Promise<MoveQuiescence::Answer> MoveQuiescence::quiesce(const TrainerRef& trainer, uint64_t move,
                                                            const std::string& cannot) {
  if (!underWay() || move != notice_.move) return Answer(DaemonAddresses());
  if (!cannot.empty()) {
    giveUp({ErrorCode::notReady, rankText(trainer.rank) + ": " + printable(cannot, kReasonBytesMax)});
    return Answer(DaemonAddresses());
  }
  if (quiescedTrainers_.contains(trainer.session)) {
    return Answer(ErrorCode::invalidArgument, "another quiesce() of this session waits already");
  }
  auto told = kj::newPromiseAndFulfiller<Answer>();
  const uint64_t number = ++calls_;
  quiescedTrainers_[trainer.session] = {trainer, number, kj::mv(told.fulfiller)};
  hosting_.excludeFromRounds(trainer.session);
  look();
  return told.promise.attach(
      kj::defer([this, session = trainer.session, number] { dropped(session, number); }));
}

void MoveQuiescence::dropped(SessionId session, uint64_t number) {
  const auto entry = quiescedTrainers_.find(session);
  if (entry == quiescedTrainers_.end() || entry->second.number != number) return;  // answered already
  resumeTrainer(session);
}

void MoveQuiescence::resumeTrainer(SessionId session) {
  const auto entry = quiescedTrainers_.find(session);
  if (entry == quiescedTrainers_.end()) return;
  // Once all are quiesced it can do nothing before the move is over.
  const Quiesced aside = std::move(entry->second);
  quiescedTrainers_.erase(entry);
  const Trainers in = trainers_();
  const bool isIn = std::ranges::any_of(in, [&](const auto& other) { return other.session == session; });
  if (isIn) hosting_.includeInRounds(aside.trainer);
}

kj::Promise<Status> MoveQuiescence::whenAllQuiesced() {
  if (impossible_) return Status(*impossible_);
  if (!underWay() || waiter_ != nullptr)
    return Status(ErrorCode::notReady, "there is no move, or another call waits for it already");
  auto all = kj::newPromiseAndFulfiller<Status>();
  waiter_ = kj::mv(all.fulfiller);
  look();
  return kj::mv(all.promise);
}

void MoveQuiescence::look() {
  KJ_IF_MAYBE (waiter, waiter_) {
    const Trainers in = trainers_();
    const bool all = std::ranges::all_of(
        in, [&](const auto& trainer) { return quiescedTrainers_.contains(trainer.session); });
    if (!all) return;
    serving_.changeOutgoing([](OutgoingMoveState& move) { move.settle(); });
    auto found = kj::mv(*waiter);
    waiter_ = nullptr;
    found->fulfill(Status());
  }
}

void MoveQuiescence::giveUp(const Error& why) {
  impossible_ = why;
  KJ_IF_MAYBE (waiter, waiter_) {
    auto found = kj::mv(*waiter);
    waiter_ = nullptr;
    found->fulfill(Status(why));
  }
}

void MoveQuiescence::end(const DaemonAddresses& movedTo) {
  if (!underWay() || (serving_.undecided() && movedTo.empty())) return;
  notice_ = {};
  giveUp({ErrorCode::unavailable, "the move was aborted"});
  auto aside = std::exchange(quiescedTrainers_, {});
  for (auto& [session, each] : aside) {
    if (movedTo.empty()) hosting_.includeInRounds(each.trainer);
    each.fulfiller->fulfill(Answer(movedTo));
  }
}

std::string MoveQuiescence::missing() const {
  std::vector<std::string> ranks;
  for (const TrainerRef& trainer : trainers_()) {
    if (!quiescedTrainers_.contains(trainer.session))
      ranks.push_back(trainer.bridges ? rankText(trainer.rank) : std::to_string(trainer.rank.value));
  }
  return joined(ranks, ", ");
}

}  // namespace psd

#pragma once

#include <chrono>
#include <string>

#include "server/replica/replica_state.h"

namespace psd::testing {

inline std::string text(const ClusterView& plan) {
  if (plan.ended) {
    return std::string(plan.ended->guessed() ? "guess " : "ended ") + std::to_string(plan.ended->term) + ":" +
           std::to_string(plan.ended->primary.value);
  }
  return std::to_string(plan.term) + ":" + std::to_string(plan.primary.value) + "+" +
         (plan.standby ? std::to_string(plan.standby->value) : "none");
}

/// One or a few words for each action.
struct ActionText {
  std::string operator()(const replica_action::Swap& it) const {
    return "swap " + std::to_string(it.expectedRevision) + " " + text(it.wanted);
  }
  std::string operator()(const replica_action::Read&) const { return "read"; }
  std::string operator()(const replica_action::AnswerUpTo& it) const {
    return "answer " + std::to_string(it.number);
  }
  std::string operator()(const replica_action::NotifyInSync& it) const {
    return "in sync " + std::to_string(it.standby.value);
  }
  std::string operator()(const replica_action::NotifyTakeover& it) const {
    return "take over " + std::to_string(it.standby.value);
  }
  std::string operator()(const replica_action::DropStandby& it) const {
    return "drop " + std::to_string(it.standby.value);
  }
  std::string operator()(const replica_action::CloseGates&) const { return "close gates"; }
  std::string operator()(const replica_action::OpenGates&) const { return "open gates"; }
  std::string operator()(const replica_action::Follow& it) const {
    return "follow " + std::to_string(it.primary.value) + " in " + std::to_string(it.term);
  }
  std::string operator()(const replica_action::CloseReplication&) const { return "close replication"; }
  std::string operator()(const replica_action::NotifyLeaving&) const { return "tell leaving"; }
  std::string operator()(const replica_action::Promote& it) const {
    return "promote " + std::to_string(it.term);
  }
  std::string operator()(const replica_action::TermRenewed& it) const {
    return "renewed " + std::to_string(it.term);
  }
  std::string operator()(const replica_action::StepDown& it) const {
    return it.handedOver ? "step down whole" : "step down";
  }
  std::string operator()(const replica_action::RunOver&) const { return "run over"; }
  std::string operator()(const replica_action::MayExit& it) const {
    return it.alone ? "ended alone" : "ended";
  }
};

/// "swap 3 1:7+9, answer 5": a document is TERM:PRIMARY+STANDBY.
inline std::string text(const ReplicaActions& actions) {
  std::string all;
  for (const ReplicaAction& one : actions) all += (all.empty() ? "" : ", ") + std::visit(ActionText(), one);
  return all;
}

/// What the rules request during `time` in all without any input, beat by beat.
inline std::string silence(ReplicaState& state, TimePoint& now, std::chrono::milliseconds time) {
  constexpr std::chrono::milliseconds kBeat{50};
  ReplicaActions all;
  for (; time.count() > 0; time -= kBeat) {
    now += kBeat;
    for (auto& one : state.tick(now)) all.push_back(one);
  }
  return text(all);
}

}  // namespace psd::testing

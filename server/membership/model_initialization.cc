#include "server/membership/model_initialization.h"

#include "common/types/invariant_check.h"

namespace psd {

ModelInitialization::Role ModelInitialization::join(SessionId session) {
  const InvariantCheck check(*this);
  if (ready_) return Role::go;
  if (!initializer_ && !complete_) {
    initializer_ = session;
    return Role::initialize;
  }
  waiting_.insert(session);
  return Role::wait;
}

ModelInitialization::Role ModelInitialization::roleOf(SessionId session) const {
  if (ready_) return Role::go;
  return initializer_ == session ? Role::initialize : Role::wait;
}

bool ModelInitialization::complete(SessionId session) {
  const InvariantCheck check(*this);
  if (initializer_ != session) return false;
  initializer_.reset();
  waiting_.clear();
  complete_ = true;
  return true;
}

void ModelInitialization::open() {
  const InvariantCheck check(*this);
  ready_ = true;
}

std::optional<SessionId> ModelInitialization::depart(SessionId session) {
  const InvariantCheck check(*this);
  waiting_.erase(session);
  if (initializer_ != session) return std::nullopt;
  initializer_.reset();
  if (waiting_.empty()) return std::nullopt;
  initializer_ = *waiting_.begin();
  waiting_.erase(waiting_.begin());
  return initializer_;
}

std::string ModelInitialization::checkInvariants() const {
  if (ready_ && !complete_) return "trainers start before the values are complete";
  if (complete_ && initializer_) return "the values are complete, and a trainer initializes them";
  if (initializer_ && waiting_.contains(*initializer_)) return "the initializer waits for itself";
  if (!complete_ && !initializer_ && !waiting_.empty()) return "trainers wait, and none initializes";
  return "";
}

}  // namespace psd

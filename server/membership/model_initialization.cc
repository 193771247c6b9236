#include "server/membership/model_initialization.h"

namespace psd {

ModelInitialization::Role ModelInitialization::join(SessionId session) {
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
  if (initializer_ != session) return false;
  initializer_.reset();
  waiting_.clear();
  complete_ = true;
  return true;
}

std::optional<SessionId> ModelInitialization::depart(SessionId session) {
  waiting_.erase(session);
  if (initializer_ != session) return std::nullopt;
  initializer_.reset();
  if (waiting_.empty()) return std::nullopt;
  initializer_ = *waiting_.begin();
  waiting_.erase(waiting_.begin());
  return initializer_;
}

}  // namespace psd

#include "server/membership/model_start.h"

namespace psd {

ModelStart::Role ModelStart::join(SessionId session) {
  if (ready_) return Role::go;
  if (!bringer_ && !complete_) {
    bringer_ = session;
    return Role::bringValues;
  }
  waiting_.insert(session);
  return Role::wait;
}

ModelStart::Role ModelStart::roleOf(SessionId session) const {
  if (ready_) return Role::go;
  return bringer_ == session ? Role::bringValues : Role::wait;
}

bool ModelStart::complete(SessionId session) {
  if (bringer_ != session) return false;
  bringer_.reset();
  waiting_.clear();
  complete_ = true;
  return true;
}

std::optional<SessionId> ModelStart::depart(SessionId session) {
  waiting_.erase(session);
  if (bringer_ != session) return std::nullopt;
  bringer_.reset();
  if (waiting_.empty()) return std::nullopt;
  bringer_ = *waiting_.begin();
  waiting_.erase(waiting_.begin());
  return bringer_;
}

}  // namespace psd

#include "server/membership/model_start.h"

namespace psd {

ModelStart::Role ModelStart::join(SessionId session) {
  if (ready_) return Role::go;
  if (!bringer_) {
    bringer_ = session;
    return Role::bringValues;
  }
  waiting_.insert(session);
  return Role::wait;
}

bool ModelStart::finish(SessionId session) {
  if (bringer_ != session) return false;
  bringer_.reset();
  waiting_.clear();
  ready_ = true;
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

#pragma once

#include "common/status/status.h"

namespace psd {

/// Whether this answer of the daemon, or fault of the way to it, is the end of a remote trainer's session,
/// and not only of what was asked for: the executor serves no more calls of it, and the trainer joins anew,
/// where that may help. Of the connection between the two the same is true.
inline bool endsSession(ErrorCode code) {
  switch (code) {
    case ErrorCode::unavailable:
    case ErrorCode::sessionEnded:
    case ErrorCode::standby:
    case ErrorCode::shuttingDown:
    case ErrorCode::interrupted:
    case ErrorCode::unauthenticated:
    case ErrorCode::forbidden: return true;
    default: return false;
  }
}

}  // namespace psd

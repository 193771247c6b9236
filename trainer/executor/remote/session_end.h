#pragma once

#include "common/status/status.h"

namespace psd {

/// Whether an error of the daemon, or of the connection to it, ends a remote trainer's session and not only
/// the call: the executor rejects further calls, and the trainer joins again if the error is retryable. The
/// same holds for errors of the connection between trainer and executor.
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

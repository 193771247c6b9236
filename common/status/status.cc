#include "common/status/status.h"

#include <stdexcept>

namespace psd {

std::string_view errorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalidArgument: return "invalid argument";
    case ErrorCode::io: return "input/output";
    case ErrorCode::unavailable: return "unavailable";
    case ErrorCode::deadlineExceeded: return "deadline exceeded";
    case ErrorCode::protocolMismatch: return "protocol mismatch";
    case ErrorCode::modelMismatch: return "model mismatch";
    case ErrorCode::worldSizeMismatch: return "world size mismatch";
    case ErrorCode::rankTaken: return "rank taken";
    case ErrorCode::badSlice: return "bad slice";
    case ErrorCode::nonFinite: return "non-finite values";
    case ErrorCode::notReady: return "not ready";
    case ErrorCode::overloaded: return "overloaded";
    case ErrorCode::shuttingDown: return "shutting down";
    case ErrorCode::internal: return "internal error";
    case ErrorCode::sessionEnded: return "session ended";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::unauthenticated: return "unauthenticated";
    case ErrorCode::forbidden: return "forbidden";
    case ErrorCode::standby: return "standby";
    case ErrorCode::stale: return "stale";
  }
  return "unknown error";
}

bool isRetryable(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::deadlineExceeded ||
         code == ErrorCode::overloaded || code == ErrorCode::sessionEnded || code == ErrorCode::standby ||
         code == ErrorCode::stale;
}

void throwNoValue(const Error& error) {
  throw std::logic_error("Result::value() of an error: " + error.message);
}

void throwNoError() { throw std::logic_error("Result::error() of a value"); }

}  // namespace psd

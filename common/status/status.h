#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace psd {

/// What went wrong, in the terms of the protocol (schema/status.capnp carries the same list).
enum class ErrorCode : uint16_t {
  invalidArgument,    ///< a flag, config value or request that can never be right
  io,                 ///< a file or socket could not be read or written
  unavailable,        ///< nobody answers at the address, or the connection broke
  deadlineExceeded,   ///< a wait ran out
  protocolMismatch,   ///< the peer speaks another version of the protocol
  modelMismatch,      ///< the peer's model differs from the daemon's
  worldSizeMismatch,  ///< trainers disagree on how many they are
  rankTaken,          ///< another live trainer has the rank
  badSlice,           ///< a slice outside its shard, repeated, or not on the grain
  nonFinite,          ///< a gradient or value holds NaN or infinity
  notReady,           ///< the model has no values yet
  overloaded,         ///< a limit of the daemon is reached
  shuttingDown,       ///< the daemon is about to end
  internal,           ///< a defect of psd itself
  sessionEnded,       ///< the daemon counts this trainer as gone, or another has its place
  interrupted,        ///< this process was told to stop waiting
  unauthenticated,    ///< the peer has not shown who it is, or is known no longer
  forbidden,          ///< the peer's role does not allow it
  standby,            ///< the daemon serves nobody: it follows another one
};

std::string_view errorCodeName(ErrorCode code);

/// Whether what failed with `code` may succeed later without anybody changing anything: the peer is away,
/// busy, or has given this one up and takes it back. If not, trying again is of no use.
bool isRetryable(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;  ///< one line for people: the place, what is wrong, what would be right
};

/// Success or an Error. A value type.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)), ok_(false) {}
  Status(ErrorCode code, std::string message) : Status(Error{code, std::move(message)}) {}

  bool ok() const { return ok_; }
  const Error& error() const { return error_; }
  const std::string& message() const { return error_.message; }

 private:
  Error error_;
  bool ok_ = true;
};

/// A value or an Error. A value type.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  Result(ErrorCode code, std::string message) : Result(Error{code, std::move(message)}) {}

  bool ok() const { return state_.index() == 0; }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  const Error& error() const { return std::get<1>(state_); }
  const std::string& message() const { return error().message; }
  Status status() const { return ok() ? Status() : Status(error()); }

  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace psd

#define PSD_CONCAT_INNER(a, b) a##b
#define PSD_CONCAT(a, b) PSD_CONCAT_INNER(a, b)

/// Returns the Error of a Status or Result expression from the enclosing function, if it has one.
#define PSD_RETURN_IF_ERROR(expression)                   \
  do {                                                    \
    if (auto psdStatus = (expression); !psdStatus.ok()) { \
      return psdStatus.error();                           \
    }                                                     \
  } while (false)

/// `PSD_ASSIGN_OR_RETURN(auto x, f());` — x gets the value of a Result, or its Error is returned.
#define PSD_ASSIGN_OR_RETURN(target, expression) \
  PSD_ASSIGN_OR_RETURN_INNER(PSD_CONCAT(psdResult, __LINE__), target, expression)
#define PSD_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.error();                     \
  target = std::move(result).value()

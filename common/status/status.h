#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace psd {

/// Error codes of the protocol (schema/status.capnp has the same list).
enum class ErrorCode : uint16_t {
  invalidArgument,    ///< a flag, configuration value or request that can never be valid
  io,                 ///< a file or socket could not be read or written
  unavailable,        ///< no answer at the address, or the connection broke
  deadlineExceeded,   ///< a wait timed out
  protocolMismatch,   ///< the peer uses another version of the protocol
  modelMismatch,      ///< the peer's model differs from the daemon's
  worldSizeMismatch,  ///< trainers disagree on the world size
  rankTaken,          ///< another live trainer has the rank
  badSlice,           ///< a slice outside its shard, repeated, or not on the grain
  nonFinite,          ///< a gradient or value holds NaN or infinity
  notReady,           ///< the model has no values yet
  overloaded,         ///< a limit of the daemon is reached
  shuttingDown,       ///< the daemon is about to end
  internal,           ///< a defect of psd itself
  sessionEnded,       ///< the daemon has ended this trainer's session, or another trainer has its place
  interrupted,        ///< a caller in this process cancelled the wait
  unauthenticated,    ///< the peer has no valid credentials, or they were revoked
  forbidden,          ///< the peer's role does not allow it
  standby,            ///< the daemon serves no trainers: it follows another one
  stale,              ///< what the peer has is older than the caller accepts
};

std::string_view errorCodeName(ErrorCode code);

/// Whether a call that failed with `code` may succeed later without intervention: the peer is away or busy,
/// or dropped this session and accepts a new join. Otherwise a retry is pointless.
bool isRetryable(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string message;  ///< one line: the place, what is wrong, what would be right
};

/// Defect in the caller: throws std::logic_error.
[[noreturn]] void throwNoValue(const Error& error);
[[noreturn]] void throwNoError();

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

/// A value or an Error. A value type. Uses a plain union: every unit instantiates dozens of these, and
/// std::variant takes several times as long to compile.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)), ok_(true) {}
  Result(Error error) : error_(std::move(error)), ok_(false) {}
  Result(ErrorCode code, std::string message) : Result(Error{code, std::move(message)}) {}
  Result(Result&& other) noexcept : ok_(other.ok_) { take(std::move(other)); }
  Result(const Result& other) requires std::is_copy_constructible_v<T> : ok_(other.ok_) { take(other); }
  Result& operator=(Result&& other) noexcept {
    if (this == &other) return *this;
    destroy();
    ok_ = other.ok_;
    take(std::move(other));
    return *this;
  }
  Result& operator=(const Result& other) requires std::is_copy_constructible_v<T> {
    return *this = Result(other);
  }
  ~Result() { destroy(); }

  bool ok() const { return ok_; }
  T& value() & { return checked().value_; }
  const T& value() const& { return checked().value_; }
  T&& value() && { return std::move(checked().value_); }
  const Error& error() const {
    if (ok_) throwNoError();
    return error_;
  }
  const std::string& message() const { return error().message; }
  Status status() const { return ok() ? Status() : Status(error()); }

  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  Result& checked() {
    if (!ok_) throwNoValue(error_);
    return *this;
  }
  const Result& checked() const {
    if (!ok_) throwNoValue(error_);
    return *this;
  }
  template <class Other>
  void take(Other&& other) {
    if (ok_) {
      ::new (static_cast<void*>(std::addressof(value_))) T(std::forward<Other>(other).value_);
    } else {
      ::new (static_cast<void*>(&error_)) Error(std::forward<Other>(other).error_);
    }
  }
  void destroy() {
    if (ok_) {
      value_.~T();
    } else {
      error_.~Error();
    }
  }

  union {
    T value_;      // NOLINT(readability-identifier-naming): mistaken for a public member
    Error error_;  // NOLINT(readability-identifier-naming)
  };
  bool ok_;
};

}  // namespace psd

#define PSD_CONCAT_INNER(a, b) a##b
#define PSD_CONCAT(a, b) PSD_CONCAT_INNER(a, b)

/// Returns the Error of a Status or Result expression, if any, from the enclosing function.
#define PSD_RETURN_IF_ERROR(expression)                   \
  do {                                                    \
    if (auto psdStatus = (expression); !psdStatus.ok()) { \
      return psdStatus.error();                           \
    }                                                     \
  } while (false)

/// `PSD_ASSIGN_OR_RETURN(auto x, f());`: x gets the value of a Result, or its Error is returned.
#define PSD_ASSIGN_OR_RETURN(target, expression) \
  PSD_ASSIGN_OR_RETURN_INNER(PSD_CONCAT(psdResult, __LINE__), target, expression)
#define PSD_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.error();                     \
  target = std::move(result).value()

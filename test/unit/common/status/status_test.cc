#include "common/status/status.h"

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "test/support/catch.h"

namespace psd::status_test {
namespace {

TEST_CASE("transient errors are distinguished from permanent ones") {
  const std::set<ErrorCode> passing = {ErrorCode::unavailable, ErrorCode::deadlineExceeded,
                                       ErrorCode::overloaded,  ErrorCode::sessionEnded,
                                       ErrorCode::standby,     ErrorCode::stale};
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::stale); code++) {
    const auto error = static_cast<ErrorCode>(code);
    INFO(errorCodeName(error));
    CHECK(isRetryable(error) == passing.contains(error));
    CHECK(names.insert(errorCodeName(error)).second);  // each has a name of its own
  }
  CHECK_FALSE(names.contains("unknown error"));
}

static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(std::is_copy_constructible_v<Result<std::string>>);
static_assert(std::is_nothrow_move_constructible_v<Result<std::string>>);

TEST_CASE("a result is copied and moved with its content") {
  const std::string text(100, 'x');  // longer than a string stores inline
  const Error error{ErrorCode::io, text};
  Result<std::string> value(text), failed(error);
  Result<std::string> copy = value, other = failed;
  CHECK(*copy == text);
  CHECK(other.message() == text);
  CHECK(other.error().code == ErrorCode::io);
  CHECK(other.status().error().code == ErrorCode::io);
  CHECK(copy.status().ok());
  copy = failed;  // from a value to an error, and back
  CHECK_FALSE(copy.ok());
  CHECK(copy.message() == text);
  copy = value;
  CHECK(*copy == text);
  CHECK(value->size() == text.size());
  other = std::move(copy);
  CHECK(*other == text);
  Result<std::string>& same = other;
  other = same;
  other = std::move(same);
  CHECK(*other == text);
}

TEST_CASE("a result holds move-only types") {
  Result<std::unique_ptr<int>> owner(std::make_unique<int>(7));
  Result<std::unique_ptr<int>> next = std::move(owner);
  CHECK(**next == 7);
  const std::unique_ptr<int> taken = *std::move(next);
  CHECK(*taken == 7);
  next = Error{ErrorCode::internal, "gone"};
  CHECK(next.message() == "gone");
}

TEST_CASE("access to the absent side of a result is a defect of the caller") {
  const Result<int> failed(ErrorCode::io, "no file"), value(3);
  CHECK_THROWS_AS(failed.value(), std::logic_error);
  CHECK_THROWS_AS(value.error(), std::logic_error);
}

}  // namespace
}  // namespace psd::status_test

#include "common/status/status.h"

#include <set>
#include <string_view>

#include "test/support/catch.h"

namespace psd::status_test {
namespace {

TEST_CASE("what may pass by itself is told from what will not") {
  const std::set<ErrorCode> passing = {ErrorCode::unavailable, ErrorCode::deadlineExceeded,
                                       ErrorCode::overloaded, ErrorCode::sessionEnded};
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::interrupted); code++) {
    const auto error = static_cast<ErrorCode>(code);
    INFO(errorCodeName(error));
    CHECK(isRetryable(error) == passing.contains(error));
    CHECK(names.insert(errorCodeName(error)).second);  // each has a name of its own
  }
  CHECK_FALSE(names.contains("unknown error"));
}

}  // namespace
}  // namespace psd::status_test

#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "test/integration/local_executor.h"
#include "test/support/catch.h"
#include "test/support/holds_soon.h"
#include "trainer/executor/remote/executor_connection.h"

namespace psd::testing {

inline constexpr std::chrono::seconds kExecutorConnect{10};

inline std::unique_ptr<ExecutorConnection> connectTo(const LocalExecutor& executor) {
  auto trainer = ExecutorConnection::connect(executor.address(), kExecutorConnect, "a test");
  PSD_REQUIRE_OK(trainer);
  return *std::move(trainer);
}

/// A joined trainer, as in a user's program.
inline std::unique_ptr<ExecutorConnection> joinedTo(const LocalExecutor& executor, uint32_t rank,
                                                    uint32_t worldSize) {
  auto trainer = connectTo(executor);
  PSD_REQUIRE_OK(trainer->join({Rank{rank}, worldSize}, rank + 1));
  return trainer;
}

/// Waits for an asynchronous effect in an executor; fails after a minute.
template <class Condition>
void until(const Condition& condition) {
  REQUIRE(holdsSoon(condition));
}

}  // namespace psd::testing

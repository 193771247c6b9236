#pragma once

#include <string>

#include <kj/async-io.h>
#include <nlohmann/json.hpp>

#include "test/integration/raw_trainer.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"

namespace psd::testing {

using Json = nlohmann::ordered_json;
inline Json config(const std::string& policy = "locked") {
  return {{"policy", {{"type", policy}}},
          {"shards", 2},
          {"threads", 2},
          {"optimizer", {{"type", "sgd"}, {"lr", 1.0}}},
          {"membership", {{"lease_ms", 86'400'000}, {"grace_ms", 0}}},  // raw peers send no heartbeats
          {"limits", {{"slice_bytes", kSliceMost * sizeof(float)}}}};
}

inline uint64_t counter(const LocalServer& server, const char* name) {
  return server.status()["counters"][name].get<uint64_t>();
}

/// Runs the event loop of `io` until `condition()` holds, at most a minute.
template <class Condition>
void turnUntil(kj::AsyncIoContext& io, Condition condition) {
  auto& timer = io.provider->getTimer();
  auto deadline = timer.now() + 60 * kj::SECONDS;
  while (!condition()) {
    REQUIRE(timer.now() < deadline);
    timer.afterDelay(5 * kj::MILLISECONDS).wait(io.waitScope);
  }
}

}  // namespace psd::testing

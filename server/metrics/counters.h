#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include "server/metrics/steady_clock.h"

namespace psd {

/// A count that any thread may raise and read; relaxed, since counts order nothing.
class Counter {
 public:
  void add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  void subtract(uint64_t amount = 1) { value_.fetch_sub(amount, std::memory_order_relaxed); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

/// What the whole daemon counts. Thread-safe.
struct DaemonCounters {
  Counter connectionsAccepted;
  Counter connectionsOpen;
  Counter connectionsRefused;  ///< over limits.connections
  Counter connectionsDropped;  ///< ended by the daemon: garbage, oversized, stalled
  Counter trainersJoined;
  Counter trainersReturned;  ///< after their connection broke
  Counter joinsRefused;
  Counter pullSlices;
  Counter pullBytes;       ///< as they travel …
  Counter pullValueBytes;  ///< … and as float32
  Counter pushSlices;
  Counter pushBytes;         ///< as they travel …
  Counter pushValueBytes;    ///< … and as float32
  Counter gradients;         ///< applied in all shards
  Counter updates;           ///< shard updates applied whole
  Counter latePushes;        ///< gradients dropped because their round was closed
  Counter stalePushes;       ///< gradients dropped because they were too old
  Counter refusedNonFinite;  ///< gradient slices with NaN or infinity
  Counter refusedSlices;     ///< out of range, off the grain, of an older step
  Counter repeatedSlices;    ///< of gradients that came again, and were not applied again
  Counter refusedOverload;   ///< answered "overloaded"
  Counter reloads;           ///< times that the configuration was read again, and taken
  Counter reloadsRefused;    ///< and was not
  Counter pausedCalls;       ///< times a connection was not read for limits.calls
  Counter pausedBytes;       ///< messages that had to wait for limits.in_flight_bytes

  /// Name and value of each, in order.
  auto list() const {
    return std::to_array<std::pair<std::string_view, uint64_t>>({
        {"connections_accepted", connectionsAccepted.value()},
        {"connections_open", connectionsOpen.value()},
        {"connections_refused", connectionsRefused.value()},
        {"connections_dropped", connectionsDropped.value()},
        {"trainers_joined", trainersJoined.value()},
        {"trainers_returned", trainersReturned.value()},
        {"joins_refused", joinsRefused.value()},
        {"pull_slices", pullSlices.value()},
        {"pull_bytes", pullBytes.value()},
        {"pull_value_bytes", pullValueBytes.value()},
        {"push_slices", pushSlices.value()},
        {"push_bytes", pushBytes.value()},
        {"push_value_bytes", pushValueBytes.value()},
        {"gradients", gradients.value()},
        {"updates", updates.value()},
        {"late_pushes", latePushes.value()},
        {"stale_pushes", stalePushes.value()},
        {"refused_non_finite", refusedNonFinite.value()},
        {"refused_slices", refusedSlices.value()},
        {"repeated_slices", repeatedSlices.value()},
        {"refused_overload", refusedOverload.value()},
        {"reloads", reloads.value()},
        {"reloads_refused", reloadsRefused.value()},
        {"paused_calls", pausedCalls.value()},
        {"paused_bytes", pausedBytes.value()},
    });
  }
};

/// What one trainer's session counts. Written by the loops of its connections, read by anyone. Thread-safe.
struct SessionCounters {
  Counter step;         ///< of the last push
  Counter staleness;    ///< of the last slice
  Counter samples;      ///< behind the gradient of the last push
  Counter bytesPulled;  ///< as they travel, like the next
  Counter bytesPushed;
  Counter valueBytesPulled;  ///< as float32, like the next
  Counter valueBytesPushed;
  Counter waitForModel;       ///< calls that are parked until the model has values
  Counter waitForPush;        ///< slices whose push the policy has not answered yet
  Counter waitForSamples;     ///< calls that are parked until there are samples for it
  Counter waitForParameters;  ///< slices whose pull the policy has not answered yet
  Counter connections;        ///< over which it has a session now
  Counter lastSeenMs;         ///< steady clock, milliseconds

  /// The trainer made a call, or would have if the daemon had let it.
  void heard() { lastSeenMs.set(steadyMs()); }
};

}  // namespace psd

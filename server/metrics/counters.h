#pragma once

#include "server/metrics/registry.h"
#include "server/metrics/steady_clock.h"

namespace psd {

/// What the whole daemon counts and measures; each metric is named and explained here alone. Thread-safe.
struct DaemonMetrics : MetricRegistry {
  using Count = Metric<Counter>;

  Count connectionsAccepted{
      *this, {"connections_accepted", Unit::none, "connections, those that ask for the status too"}};
  Metric<Gauge> connectionsOpen{*this,
                                {"connections_open", Unit::none, "connections now, the asking one too"}};
  Count connectionsRefused{
      *this, {"connections_refused", Unit::none, "connections over `limits.connections`", true}};
  Count connectionsDropped{*this,
                           {"connections_dropped", Unit::none,
                            "connections that the daemon ended: garbage, oversized, stalled", true}};
  Count handshakesRefused{
      *this,
      {"handshakes_refused", Unit::none, "connections to tls:// that did not come to a TLS handshake", true}};
  Count loginsRefused{
      *this, {"logins_refused", Unit::none, "logins of callers that did not show who they are", true}};
  Count accessRevoked{*this,
                      {"access_revoked", Unit::none,
                       "connections whose caller lost what it had been allowed, after a reload", true}};
  Count trainersJoined{*this, {"trainers_joined", Unit::none, "sessions that began"}};
  Count trainersReturned{*this,
                         {"trainers_returned", Unit::none,
                          "times that a trainer went on with its session after its connection broke"}};
  Count joinsRefused{*this, {"joins_refused", Unit::none, "trainers that were not let in", true}};
  Count pullSlices{*this, {"pull_slices", Unit::none, "slices that were pulled, by readers too"}};
  Count pullBytes{*this, {"pull_bytes", Unit::bytes, "parameters that were pulled, as they travelled"}};
  Count pullValueBytes{*this, {"pull_value_bytes", Unit::bytes, "the same parameters as float32"}};
  Count pushSlices{*this, {"push_slices", Unit::none, "slices that were pushed, and accepted"}};
  Count pushBytes{*this, {"push_bytes", Unit::bytes, "gradients that were pushed, as they travelled"}};
  Count pushValueBytes{*this, {"push_value_bytes", Unit::bytes, "the same gradients as float32"}};
  Count gradients{*this, {"gradients", Unit::none, "gradients applied in all shards"}};
  Count updates{
      *this,
      {"updates", Unit::none, "updates of a shard applied whole: with 4 shards a whole gradient makes 4"}};
  Count latePushes{*this, {"late_pushes", Unit::none, "gradients dropped because their round was closed"}};
  Count leftOut{*this, {"left_out", Unit::none, "times that a round closed without one of its trainers"}};
  Count lateCounted{
      *this, {"late_counted", Unit::none, "gradients that counted in a round after theirs had closed"}};
  Count stalePushes{*this, {"stale_pushes", Unit::none, "gradients dropped because they were too old"}};
  Count refusedNonFinite{
      *this, {"refused_non_finite", Unit::none, "slices refused for a NaN or an infinity in them", true}};
  Count refusedSlices{
      *this,
      {"refused_slices", Unit::none, "slices refused: out of range, off the grain, of an older step", true}};
  Count repeatedSlices{
      *this, {"repeated_slices", Unit::none, "slices that came again; answered, and not applied again"}};
  Count refusedOverload{*this,
                        {"refused_overload", Unit::none, "calls refused because a limit was reached", true}};
  Count reloads{*this, {"reloads", Unit::none, "times that the configuration was read again, and taken"}};
  Count reloadsRefused{
      *this,
      {"reloads_refused", Unit::none, "times that the configuration was read again, and not taken", true}};
  Count pausedCalls{*this,
                    {"paused_calls", Unit::none, "times that a connection was not read for `limits.calls`"}};
  Count pausedMessages{
      *this, {"paused_messages", Unit::none, "messages that had to wait for `limits.in_flight_bytes`"}};

  Metric<Histogram> staleness{
      *this,
      {"staleness", Unit::none, "staleness of a gradient that was applied, in the shard where it is largest"},
      kCountBounds};
  Metric<Histogram> applySeconds{
      *this,
      {"apply_seconds", Unit::seconds, "from a gradient's first slice until all shards have it"},
      kSecondsBounds};
  Metric<Histogram> roundSeconds{
      *this,
      {"round_seconds", Unit::seconds, "from the opening of a synchronous round until it was closed"},
      kSecondsBounds};
  Metric<Histogram> graceSeconds{
      *this,
      {"grace_seconds", Unit::seconds, "from the quorum of a round under `grace_ms` until it was closed"},
      kSecondsBounds};
  Metric<Histogram> logSyncSeconds{
      *this, {"log_sync_seconds", Unit::seconds, "one write of the log and its sync"}, kSecondsBounds};
};

/// What one trainer's session counts. Written by the loops of its connections, read by anyone. Thread-safe.
struct SessionCounters {
  Gauge step;                            ///< of the last push
  Gauge staleness;                       ///< of the last slice
  Histogram allStaleness{kCountBounds};  ///< of its gradients, as DaemonMetrics::staleness has it of all
  Gauge samples;                         ///< behind the gradient of the last push
  Counter bytesPulled;                   ///< as they travel, like the next
  Counter bytesPushed;
  Counter valueBytesPulled;  ///< as float32, like the next
  Counter valueBytesPushed;
  Gauge waitForModel;       ///< calls that are parked until the model has values
  Gauge waitForPush;        ///< slices whose push the policy has not answered yet
  Gauge waitForSamples;     ///< calls that are parked until there are samples for it
  Gauge waitForParameters;  ///< slices whose pull the policy has not answered yet
  Gauge connections;        ///< over which it has a session now
  Gauge lastSeenMs;         ///< steady clock, milliseconds

  /// The trainer made a call, or would have if the daemon had let it.
  void heard() { lastSeenMs.set(steadyMs()); }
};

}  // namespace psd

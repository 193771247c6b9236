#pragma once

#include "server/metrics/registry.h"
#include "server/metrics/steady_clock.h"

namespace psd {

/// The metrics of the whole daemon; each is named and described only here. Thread-safe.
struct DaemonMetrics : MetricRegistry {
  using Count = Metric<Counter>;

  Count connectionsAccepted{
      *this, {"connections_accepted", Unit::none, "connections accepted, including those of status queries"}};
  Metric<Gauge> connectionsOpen{*this,
                                {"connections_open", Unit::none, "open connections, including the query's"}};
  Count connectionsRefused{
      *this, {"connections_refused", Unit::none, "connections refused over `limits.connections`", true}};
  Count connectionsDropped{*this,
                           {"connections_dropped", Unit::none,
                            "connections closed by the daemon: malformed, oversized or stalled", true}};
  Count handshakesRefused{
      *this,
      {"handshakes_refused", Unit::none, "connections to tls:// without a complete TLS handshake", true}};
  Count loginsRefused{*this, {"logins_refused", Unit::none, "failed logins", true}};
  Count accessRevoked{
      *this, {"access_revoked", Unit::none, "connections whose caller lost permissions on a reload", true}};
  Count trainersJoined{*this, {"trainers_joined", Unit::none, "sessions started"}};
  Count trainersReturned{
      *this,
      {"trainers_returned", Unit::none, "sessions resumed by their trainers after a connection broke"}};
  Count joinsRefused{*this, {"joins_refused", Unit::none, "rejected joins", true}};
  Count pullSlices{*this, {"pull_slices", Unit::none, "slices pulled, including by readers"}};
  Count pullBytes{*this, {"pull_bytes", Unit::bytes, "parameters pulled, as encoded on the wire"}};
  Count pullValueBytes{*this, {"pull_value_bytes", Unit::bytes, "the same parameters as float32"}};
  Count pushSlices{*this, {"push_slices", Unit::none, "slices pushed and accepted"}};
  Count pushBytes{*this, {"push_bytes", Unit::bytes, "gradients pushed, as encoded on the wire"}};
  Count pushValueBytes{*this, {"push_value_bytes", Unit::bytes, "the same gradients as float32"}};
  Count gradients{*this, {"gradients", Unit::none, "gradients applied in all shards"}};
  Count updates{
      *this, {"updates", Unit::none, "completed updates of a shard: with 4 shards a whole gradient makes 4"}};
  Count latePushes{*this, {"late_pushes", Unit::none, "gradients dropped because their round had closed"}};
  Count leftOut{*this, {"left_out", Unit::none, "trainers missing from a round when it closed"}};
  Count lateCounted{
      *this, {"late_counted", Unit::none, "gradients counted in a later round, after theirs had closed"}};
  Count stalePushes{*this, {"stale_pushes", Unit::none, "gradients dropped because they were too stale"}};
  Count refusedNonFinite{
      *this, {"refused_non_finite", Unit::none, "slices refused because of a NaN or an infinity", true}};
  Count refusedSlices{
      *this,
      {"refused_slices", Unit::none, "slices refused: out of range, misaligned, or of an older step", true}};
  Count repeatedSlices{*this,
                       {"repeated_slices", Unit::none, "duplicate slices; acknowledged, not applied again"}};
  Count refusedOverload{*this,
                        {"refused_overload", Unit::none, "calls refused because a limit was reached", true}};
  Count reloads{*this, {"reloads", Unit::none, "successful configuration reloads"}};
  Count reloadsRefused{*this, {"reloads_refused", Unit::none, "rejected configuration reloads", true}};
  Count pausedCalls{*this,
                    {"paused_calls", Unit::none, "pauses in reading from a connection for `limits.calls`"}};
  Count pausedMessages{*this,
                       {"paused_messages", Unit::none, "messages that waited for `limits.in_flight_bytes`"}};

  Metric<Histogram> staleness{
      *this,
      {"staleness", Unit::none, "staleness of an applied gradient, in the shard where it is largest"},
      kCountBounds};
  Metric<Histogram> applySeconds{
      *this,
      {"apply_seconds", Unit::seconds, "from a gradient's first slice until all shards have applied it"},
      kSecondsBounds};
  Metric<Histogram> roundSeconds{
      *this,
      {"round_seconds", Unit::seconds, "from the opening of a synchronous round to its close"},
      kSecondsBounds};
  Metric<Histogram> graceSeconds{
      *this,
      {"grace_seconds", Unit::seconds, "from the quorum of a round under `grace_ms` to its close"},
      kSecondsBounds};
  Metric<Histogram> logSyncSeconds{
      *this, {"log_sync_seconds", Unit::seconds, "one write of the log, with its sync"}, kSecondsBounds};
};

/// The counters of one trainer's session. Written by the event loops of its connections, read by any thread.
struct SessionCounters {
  Gauge step;                            ///< of the last push
  Gauge staleness;                       ///< of the last slice
  Histogram allStaleness{kCountBounds};  ///< of its gradients, like DaemonMetrics::staleness
  Gauge samples;                         ///< behind the gradient of the last push
  Counter bytesPulled;                   ///< as encoded on the wire, like the next
  Counter bytesPushed;
  Counter valueBytesPulled;  ///< as float32, like the next
  Counter valueBytesPushed;
  Gauge waitForModel;       ///< calls parked until the model is initialized
  Gauge waitForPush;        ///< slices whose push the policy has not answered yet
  Gauge waitForSamples;     ///< calls parked until it can be assigned samples
  Gauge waitForParameters;  ///< slices whose pull the policy has not answered yet
  Gauge connections;        ///< that its session has now
  Gauge lastSeenMs;         ///< steady clock, in milliseconds

  /// Records a sign of life: the trainer made a call, or the daemon keeps it from making one.
  void touch() { lastSeenMs.set(steadyMs()); }
};

}  // namespace psd

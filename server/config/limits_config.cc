#include "server/config/limits_config.h"

#include <string>

#include "common/types/model_layout.h"
#include "server/config/world_size.h"

namespace psd {
namespace {

constexpr uint64_t kKiB = 1ull << 10, kMiB = 1ull << 20, kTiB = 1ull << 40, kPiB = 1ull << 50;
constexpr uint64_t kTimeoutMsMax = 86'400'000;  // a day

/// Bytes of a call's message beside the slice; generous.
constexpr uint64_t kCallBytes = 4 * kKiB;

constexpr uint64_t kGrainBytes = kLayoutGrainElements * sizeof(float);

void readMessages(ConfigReader& in, Limits& limits) {
  in.integer({"connections",
              "Connections open at once, of all trainers together, and the largest world size. Further "
              "ones are closed, except a few of operators. Lowered, with a warning, where the system's "
              "limit of open files (`ulimit -n`) allows fewer.",
              Key::kLive},
             limits.connections, 1, kTrainersMax);
  in.integer({"message_bytes", "Largest incoming message. A larger one ends its connection."},
             limits.messageBytes, 64 * kKiB, 64 * kMiB);
  in.integer({"slice_bytes",
              "Largest slice of parameters or gradients in one call; trainers learn it when they join. At "
              "least 4096 less than `message_bytes` and than `outgoing_bytes`."},
             limits.sliceBytes, 4 * kKiB, 32 * kMiB, {{"multipleOf", kGrainBytes}});
  in.integer(
      {"in_flight_bytes",
       "Memory for incoming messages of all connections, beyond 64 KiB of each. While it is in use, further "
       "messages wait in their sockets and are read in the order of arrival. At least `message_bytes`."},
      limits.inFlightBytes, 64 * kKiB, kTiB);
  in.integer({"calls",
              "Calls in progress and unread answers of one connection, except long polls; beyond that the "
              "daemon stops reading from it until some are done. Also the most capabilities, sessions and "
              "readers, that a connection may hold.",
              Key::kLive},
             limits.calls, 16, kTrainersMax);
}

void readMemory(ConfigReader& in, Limits& limits) {
  in.integer({"staged_bytes",
              "Memory for gradients of all trainers that are gathered before they are applied: the rounds of "
              "`sync`, and under `locked` and `bounded_staleness` a shard's gradient in several slices. Each "
              "CUDA device takes as much again for the gradients of rounds. A push beyond it is refused.",
              Key::kLive},
             limits.stagedBytes, 64 * kKiB, kTiB);
  in.integer({"snapshot_bytes",
              "Memory for copies of shards, one for each version, that pulls in progress read under all "
              "policies but `hogwild`, and that `policy.delay_compensation` keeps. The latter are evicted "
              "first; beyond that a pull waits for another one to end.",
              Key::kLive},
             limits.snapshotBytes, 64 * kKiB, kTiB);
  in.integer({"log_pending_bytes",
              "Memory for updates that wait for the log's disk. Beyond it pushes wait, then messages wait in "
              "their sockets.",
              Key::kLive},
             limits.logPendingBytes, 64 * kKiB, kTiB);
  in.integer(
      {"outgoing_bytes",
       "Answers queued for one connection, including those of calls in progress. Beyond it the "
       "connection's pulls are refused and other large answers wait or are refused; beyond twice as much "
       "the daemon stops reading from it.",
       Key::kLive},
      limits.outgoingBytes, 64 * kKiB, kTiB);
  in.integer({"all_outgoing_bytes",
              "Answers queued for all connections together, and documents over HTTP. Beyond it the daemon "
              "does not read from connections with unread answers, pulls of rows wait, and other large "
              "answers wait or are refused.",
              Key::kLive},
             limits.allOutgoingBytes, 64 * kKiB, kTiB);
}

void readTimes(ConfigReader& in, Limits& limits) {
  in.integer({"pull_timeout_ms",
              "Time that a pull may request nothing while the daemon holds a copy of a shard for it. After "
              "that the copy is released and the trainer repeats the pull.",
              Key::kLive},
             limits.pullTimeoutMs, 1, kTimeoutMsMax);
  in.integer({"read_timeout_ms",
              "Time for a message to be complete after its first byte. A connection may be idle between "
              "messages without limit. Applies to connections opened after a change.",
              Key::kLive},
             limits.readTimeoutMs, 1, kTimeoutMsMax);
  in.integer({"login_timeout_ms",
              "Time for a TLS handshake and, with `auth`, from the connection, or the answer to a login that "
              "failed, to the next login. Applies to connections opened after a change.",
              Key::kLive},
             limits.loginTimeoutMs, 100, kTimeoutMsMax);
  in.integer({"write_timeout_ms",
              "Time that a peer may leave its answers unread. Applies to connections opened after a change.",
              Key::kLive},
             limits.writeTimeoutMs, 1, kTimeoutMsMax);
  in.integer({"drain_ms", "Time that shutdown, and a change of the configuration, wait for calls in flight.",
              Key::kLive},
             limits.drainMs, 0, kTimeoutMsMax);
}

void readTotals(ConfigReader& in, Limits& limits) {
  in.integer({"ring_bytes",
              "Shared memory through which one trainer on the same machine pushes gradients and exchanges "
              "rows of tables; a slice is at most a quarter of it. 0: they travel in messages."},
             limits.ringBytes, 0, kTiB);
  in.integer({"all_rings_bytes",
              "Shared memory of all trainers together; a trainer that asks for more sends messages. At least "
              "`ring_bytes`."},
             limits.allRingsBytes, 0, kTiB);
  in.integer({"table_bytes",
              "Memory of all embedding tables on all devices: rows with optimizer state, index, admission "
              "filters and fixed parts. A join whose empty tables exceed it, and a push that would create "
              "rows beyond it, are answered `overloaded`.",
              Key::kLive},
             limits.tableBytes, 1, kPiB);
  in.integer(
      {"sessions_bytes",
       "Memory for the state of trainers' pushes: 4,096 bytes per trainer for each shard and row "
       "shard and, where pushes carry hyperparameters, 256 for each tensor and for each table of each row "
       "shard. A join that would exceed it is answered `overloaded`.",
       Key::kLive},
      limits.sessionsBytes, 64 * kKiB, kPiB);
  in.integer({"arriving_bytes",
              "Memory for the parts of a model that moves to this daemon, for one of its published versions "
              "at a time, "
              "and for the values and the optimizer state that a trainer restores. Beyond it the move or the "
              "restore fails, and nothing changes. "
              "Applies to what starts after a change.",
              Key::kLive},
             limits.arrivingBytes, 64 * kKiB, kPiB);
  in.integer(
      {"version_bytes",
       "Bytes of all published versions, on the disk or, without durability, in memory. At least "
       "three times the size of a version; leases leave room for two more, so that no reader prevents the "
       "next one. "
       "Beyond it a lease is refused, or the next version fails and is retried.",
       Key::kLive},
      limits.versionBytes, 64 * kKiB, kPiB);
  in.integer({"version_leases", "Leases of published versions that all readers together hold.", Key::kLive},
             limits.versionLeases, 1, kTrainersMax);
  in.integer({"model_bytes",
              "Largest model that a trainer may initialize: 4 bytes per float32 weight without optimizer "
              "state, 512 per tensor and 2,048 per shard. 0: what fits on the devices, of which a CUDA "
              "device keeps 256 MiB free.",
              Key::kLive},
             limits.modelBytes, 0, kModelElementsMax * sizeof(float));
  in.integer({"buffer_bytes",
              "Largest file of a model's buffers that the trainer with rank 0 may set; the daemon has it in "
              "memory. 0: none.",
              Key::kLive},
             limits.bufferBytes, 0, kTiB);
}

void checkLimits(ConfigReader& in, const Limits& limits) {
  const std::string slice = std::to_string(limits.sliceBytes);
  if (limits.sliceBytes % kGrainBytes != 0) {
    in.fail("slice_bytes", "must be a multiple of " + std::to_string(kGrainBytes) + ", not " + slice);
  }
  const auto atLeast = [&](std::string_view key, uint64_t value, std::string_view other, uint64_t least) {
    if (value >= least) return;
    in.fail(key, "must be at least " + std::string(other) + " (" + std::to_string(least) + "), not " +
                     std::to_string(value));
  };
  atLeast("in_flight_bytes", limits.inFlightBytes, "message_bytes", limits.messageBytes);
  atLeast("all_rings_bytes", limits.allRingsBytes, "ring_bytes", limits.ringBytes);
  // A slice with the call around it must fit in both directions, or nothing could be pushed or pulled.
  const auto mustHoldSlice = [&](std::string_view key, uint64_t bytes) {
    if (bytes >= limits.sliceBytes + kCallBytes) return;
    in.fail("slice_bytes", "must be at least " + std::to_string(kCallBytes) + " less than " +
                               std::string(key) + " (" + std::to_string(bytes) + "), not " + slice);
  };
  mustHoldSlice("message_bytes", limits.messageBytes);
  mustHoldSlice("outgoing_bytes", limits.outgoingBytes);
}

}  // namespace

Limits readLimits(ConfigReader in) {
  Limits limits;
  readMessages(in, limits);
  readMemory(in, limits);
  readTimes(in, limits);
  readTotals(in, limits);
  checkLimits(in, limits);
  return limits;
}

}  // namespace psd

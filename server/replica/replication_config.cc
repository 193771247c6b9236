#include "server/replica/replication_config.h"

#include <string>
#include <utility>
#include <vector>

#include "common/config/peer_keys.h"

namespace psd {
namespace {

constexpr uint64_t kMinuteMs = 60'000;
constexpr uint64_t kMiB = 1ull << 20, kTiB = 1ull << 40;
constexpr uint64_t kBeatsOfSilence = 4;  // with fewer, a delayed beat or two would look like a death

using Wait = ReplicationConfig::Wait;

void checkTimes(ConfigReader& in, const ReplicationConfig& config) {
  if (config.silenceMs < kBeatsOfSilence * config.heartbeatMs) {
    in.fail("silence_ms", "must be at least " + std::to_string(kBeatsOfSilence) + " times heartbeat_ms (" +
                              std::to_string(config.heartbeatMs) +
                              "): a standby would take over for a delayed beat");
  }
  if (config.aloneMs < 2 * config.silenceMs) {
    in.fail("alone_ms", "must be at least twice silence_ms (" + std::to_string(config.silenceMs) +
                            "): the standby gets the first try");
  }
}

}  // namespace

std::string_view describe(Wait wait) {
  switch (wait) {
    case Wait::standby: return "standby";
    case Wait::standbyAndDisk: return "standby_and_disk";
    case Wait::none: return "none";
  }
  return "none";
}

ReplicationConfig readReplication(ConfigReader in) {
  ReplicationConfig config;
  std::vector<std::pair<std::string_view, Wait>> waits;
  for (const Wait each : {Wait::standby, Wait::standbyAndDisk, Wait::none}) {
    waits.emplace_back(describe(each), each);
  }
  in.choice<Wait>(
      {"wait",
       "When a push is answered. `standby`: once the standby in sync has its record. `standby_and_disk`: "
       "once it is in the logs on both disks, for which both daemons have `durability.type` `log`. `none`: "
       "at once; records that the standby has not received are lost with the primary."},
      config.wait, waits);
  in.integer({"heartbeat_ms", "Time between two heartbeats."}, config.heartbeatMs, 1, kMinuteMs);
  in.integer({"silence_ms",
              "Time without a heartbeat of the primary after which its standby takes over. At least four "
              "times `heartbeat_ms`."},
             config.silenceMs, 10, kMinuteMs);
  in.integer({"alone_ms",
              "Time without a heartbeat of the standby after which the primary continues alone. At least "
              "twice `silence_ms`."},
             config.aloneMs, 20, 10 * kMinuteMs);
  in.integer({"lag_bytes",
              "Bytes of records that a standby has not applied; beyond it pushes wait, which bounds the time "
              "of a takeover."},
             config.lagBytes, kMiB, kTiB);
  in.integer({"catch_up_bytes",
              "Bytes of records that a standby keeps while it receives the model; beyond it pushes wait. A "
              "record of up to 4 GiB always fits."},
             config.catchUpBytes, kMiB, kTiB);
  config.addresses = readDialable(
      in, {"addresses",
           "Addresses at which other daemons reach this one. Empty: where it listens, `*` as the machine's "
           "name."});
  config.credentials = readCredentialKeys(in, "replication", "admin", "its primary");
  checkTimes(in, config);
  return config;
}

}  // namespace psd

#include "server/replica/replication_config.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace psd {
namespace {

constexpr uint64_t kMinuteMs = 60'000;
constexpr uint64_t kMiB = 1ull << 20, kTiB = 1ull << 40;
constexpr uint64_t kBeatsOfSilence = 4;  // with fewer, a delayed beat or two would look like a death

using Wait = ReplicationConfig::Wait;

void readAddresses(ConfigReader& in, ReplicationConfig& config) {
  std::vector<std::string> texts;
  in.texts({"addresses",
            "Addresses at which other daemons reach this one. Empty: where it listens, `*` as the machine's "
            "name."},
           texts);
  size_t index = 0;
  for (const std::string& text : texts) {
    auto address = parseAddress(text);
    const std::string place = "addresses[" + std::to_string(index++) + "]";
    if (!address.ok()) {
      in.fail(place, address.message());
    } else if (address->kind == Address::Kind::tcp && (address->port == 0 || address->host == "*")) {
      in.fail(place, "\"" + text + "\" cannot be dialled: it needs a host and a port");
    } else {
      config.addresses.push_back(*std::move(address));
    }
  }
}

void readCredentials(ConfigReader& in, ReplicationConfig& config) {
  const auto given = [&](const Key& key) {
    std::string text;
    in.path(key, text);
    return text.empty() ? std::nullopt : std::optional(std::move(text));
  };
  config.credentials.tokenFileFlag = "replication.token_file";
  config.credentials.tokenFile =
      given({"token_file",
             "Path of a file whose first line is the token, of role `admin`, that this daemon presents to "
             "its primary. Empty: `PSD_TOKEN_FILE` or `PSD_TOKEN`."});
  config.credentials.tlsCa = given({"tls_ca",
                                    "Path of the authorities that may sign the certificate of a primary at "
                                    "`tls://`. Empty: `PSD_TLS_CA`, else those of the system."});
  config.credentials.tlsCertificate =
      given({"tls_cert", "Path of this daemon's certificate for its primary. Empty: `PSD_TLS_CERT`."});
  config.credentials.tlsKey = given({"tls_key", "Path of that certificate's key. Empty: `PSD_TLS_KEY`."});
}

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
  readAddresses(in, config);
  readCredentials(in, config);
  checkTimes(in, config);
  return config;
}

}  // namespace psd

#include "server/replica/replication_config.h"

#include <optional>
#include <string>

namespace psd {
namespace {

constexpr uint64_t kMinuteMs = 60'000;
constexpr uint64_t kMiB = 1ull << 20, kTiB = 1ull << 40;
constexpr uint64_t kBeatsOfSilence = 4;  // with fewer, a delayed beat or two would look like a death

using Wait = ReplicationConfig::Wait;

}  // namespace

std::string_view describe(Wait wait) {
  switch (wait) {
    case Wait::standby: return "standby";
    case Wait::standbyAndDisk: return "standby_and_disk";
    case Wait::none: return "none";
  }
  return "none";
}

ReplicationConfig readReplication(ObjectReader in) {
  ReplicationConfig config;
  const std::string wait = in.choice("wait", "standby", {"standby", "standby_and_disk", "none"});
  for (const Wait each : {Wait::standby, Wait::standbyAndDisk, Wait::none}) {
    if (describe(each) == wait) config.wait = each;
  }
  config.heartbeatMs = in.integer("heartbeat_ms", config.heartbeatMs, 1, kMinuteMs);
  config.silenceMs = in.integer("silence_ms", config.silenceMs, 10, kMinuteMs);
  config.aloneMs = in.integer("alone_ms", config.aloneMs, 20, 10 * kMinuteMs);
  config.lagBytes = in.integer("lag_bytes", config.lagBytes, kMiB, kTiB);
  config.catchUpBytes = in.integer("catch_up_bytes", config.catchUpBytes, kMiB, kTiB);
  size_t index = 0;
  for (const std::string& text : in.texts("addresses", {})) {
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
  const auto given = [&](const char* key) {
    std::string text = in.text(key, "");
    return text.empty() ? std::nullopt : std::optional(std::move(text));
  };
  config.credentials.tokenFile = given("token_file");
  config.credentials.tlsCa = given("tls_ca");
  config.credentials.tlsCertificate = given("tls_cert");
  config.credentials.tlsKey = given("tls_key");
  if (config.silenceMs < kBeatsOfSilence * config.heartbeatMs) {
    in.fail("silence_ms", "must be at least " + std::to_string(kBeatsOfSilence) + " times heartbeat_ms (" +
                              std::to_string(config.heartbeatMs) +
                              "): a standby would take over for a delayed beat");
  }
  if (config.aloneMs < 2 * config.silenceMs) {
    in.fail("alone_ms", "must be at least twice silence_ms (" + std::to_string(config.silenceMs) +
                            "): the standby gets the first try");
  }
  return config;
}

}  // namespace psd

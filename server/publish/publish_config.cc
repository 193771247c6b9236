#include "server/publish/publish_config.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "common/config/peer_keys.h"

namespace psd {
namespace {

using From = PublishConfig::From;

constexpr std::string_view kFroms[] = {"training", "publishers", "upstream"};
constexpr double kSecondsMax = 30 * 86'400;
constexpr uint64_t kUpdatesMax = 1ull << 40;
constexpr uint64_t kKeepMax = 1'000;
constexpr uint64_t kTimeoutSecondsMax = 86'400;

/// Refuses keys of other sources than the chosen one.
void refuseKeys(ConfigReader& in, From chosen, std::string_view sources,
                std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    in.refuse(key, "requires from " + std::string(sources) + ", not \"" +
                       std::string(publishFromName(chosen)) + "\"");
  }
}

void readFromTraining(ConfigReader& in, PublishConfig& config) {
  in.number(
      {"every_seconds",
       "Seconds from one version to the next, if the model has changed. 0: no versions by time.", Key::kLive},
      config.everySeconds, {.min = 0, .max = kSecondsMax});
  in.integer(
      {"every_updates",
       "Least number of updates of a shard, on average over the shards, from one version to the next; with "
       "rounds, their number. Of several daemons: a version after each round whose number is a multiple of "
       "it. 0: no versions by updates. With both at 0 only `psd publish` makes versions.",
       Key::kLive},
      config.everyUpdates, 0, kUpdatesMax);
  in.choice<std::optional<DType>>(
      {"as",
       "Data type of all tensors of a version. `model`: that of each tensor in the model. Values beyond the "
       "range of `f16` or `bf16` fail the version."},
      config.as, {{"model", std::nullopt}, {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}});
}

void readPath(ConfigReader& in, PublishConfig& config) {
  in.path({"path",
           "Folder of the versions, created if missing. It belongs to one daemon alone. Empty: they are in "
           "memory and end with the daemon."},
          config.path);
}

void readFromPublishers(ConfigReader& in, PublishConfig& config) {
  readPath(in, config);
  in.integer(
      {"parts_timeout_seconds",
       "Time from the first rank that begins a step until all have begun it, and for which then no byte "
       "may arrive, before the step is abandoned.",
       Key::kLive},
      config.partsTimeoutSeconds, 1, kTimeoutSecondsMax);
}

void readFromUpstream(ConfigReader& in, PublishConfig& config) {
  config.upstream = readDialable(
      in,
      {"upstream",
       "Addresses of daemons that have these versions: the source and its standby, or other replicas. The "
       "daemon follows one of them, and another one when that one is away or is out of date itself."});
  if (!in.describes() && config.upstream.empty()) {
    in.fail("upstream", "must name at least one daemon, as [\"tcp://node7:5500\"]");
  }
  readPath(in, config);
  config.credentials = readCredentialKeys(in, "publish", "reader", "the daemon that it follows");
}

/// Refuses the keys that belong to other sources.
void refuseOfOthers(ConfigReader& in, From chosen) {
  if (chosen != From::training) {
    refuseKeys(in, chosen, "\"training\"", {"every_seconds", "every_updates", "as"});
  } else {
    refuseKeys(in, chosen, "\"publishers\" or \"upstream\"", {"path"});
  }
  if (chosen != From::publishers) refuseKeys(in, chosen, "\"publishers\"", {"parts_timeout_seconds"});
  if (chosen != From::upstream) {
    refuseKeys(in, chosen, "\"upstream\"", {"upstream", "token_file", "tls_ca", "tls_cert", "tls_key"});
  }
}

}  // namespace

std::string_view publishFromName(From from) { return kFroms[static_cast<size_t>(from)]; }

PublishConfig readPublish(ConfigReader in) {
  PublishConfig config;
  in.alternatives(
      {"from", "Where versions come from."}, kFroms[0],
      {{kFroms[0], "The model that this daemon trains."},
       {kFroms[1],
        "Programs that train elsewhere and publish their weights with `psd.Publisher`. The daemon has "
        "no model: it takes no keys about training."},
       {kFroms[2],
        "Another daemon, whose versions this one copies and serves: it is a replica for readers, and has no "
        "model."}},
      [&config](ConfigReader& options, std::string_view from) {
        config.from = static_cast<From>(std::ranges::find(kFroms, from) - std::begin(kFroms));
        refuseOfOthers(options, config.from);
        switch (config.from) {
          case From::training: readFromTraining(options, config); break;
          case From::publishers: readFromPublishers(options, config); break;
          case From::upstream: readFromUpstream(options, config); break;
        }
        options.integer({"keep",
                         "Number of versions that are kept, within `limits.version_bytes`; leased "
                         "versions are kept in addition.",
                         Key::kLive},
                        config.keep, 1, kKeepMax);
      });
  return config;
}

}  // namespace psd

#include "server/publish/publish_config.h"

#include <initializer_list>

namespace psd {
namespace {

using From = PublishConfig::From;

constexpr std::string_view kFroms[] = {"training", "publishers"};
constexpr double kSecondsMax = 30 * 86'400;
constexpr uint64_t kUpdatesMax = 1ull << 40;
constexpr uint64_t kKeepMax = 1'000;
constexpr uint64_t kTimeoutSecondsMax = 86'400;

/// Refuses the keys that belong to the other source.
void refuseOf(ConfigReader& in, From other, std::initializer_list<std::string_view> keys) {
  const From chosen = other == From::training ? From::publishers : From::training;
  for (const std::string_view key : keys) {
    in.refuse(key, "requires from \"" + std::string(publishFromName(other)) + "\", not \"" +
                       std::string(publishFromName(chosen)) + "\"");
  }
}

void readFromTraining(ConfigReader& in, PublishConfig& config) {
  refuseOf(in, From::publishers, {"path", "parts_timeout_seconds"});
  in.number(
      {"every_seconds",
       "Seconds from one version to the next, if the model has changed. 0: no versions by time.", Key::kLive},
      config.everySeconds, {.min = 0, .max = kSecondsMax});
  in.integer(
      {"every_updates",
       "Least number of updates of a shard, on average over the shards, from one version to the next; with "
       "rounds, their number. 0: no versions by updates. With both at 0 only `psd publish` makes versions.",
       Key::kLive},
      config.everyUpdates, 0, kUpdatesMax);
  in.choice<std::optional<DType>>(
      {"as",
       "Data type of all tensors of a version. `model`: that of each tensor in the model. Values beyond the "
       "range of `f16` or `bf16` fail the version."},
      config.as, {{"model", std::nullopt}, {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}});
}

void readFromPublishers(ConfigReader& in, PublishConfig& config) {
  refuseOf(in, From::training, {"every_seconds", "every_updates", "as"});
  in.path({"path",
           "Folder of the versions, created if missing. It belongs to one daemon alone. Empty: they are in "
           "memory and end with the daemon."},
          config.path);
  in.integer(
      {"parts_timeout_seconds",
       "Time from the first rank that begins a step until all have begun it, and for which then no byte "
       "may arrive, before the step is abandoned.",
       Key::kLive},
      config.partsTimeoutSeconds, 1, kTimeoutSecondsMax);
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
        "no model: it takes no keys about training."}},
      [&config](ConfigReader& options, std::string_view from) {
        const bool fromTraining = from == kFroms[0];
        config.from = fromTraining ? From::training : From::publishers;
        if (fromTraining) {
          readFromTraining(options, config);
        } else {
          readFromPublishers(options, config);
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

#include "server/publish/publish_config.h"

namespace psd {
namespace {

constexpr double kSecondsMax = 30 * 86'400;
constexpr uint64_t kUpdatesMax = 1ull << 40;
constexpr uint64_t kKeepMax = 1'000;

}  // namespace

PublishConfig readPublish(ConfigReader in) {
  PublishConfig config;
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
  in.integer({"keep",
              "Number of versions that are kept, within `limits.version_bytes`; leased versions are kept in "
              "addition.",
              Key::kLive},
             config.keep, 1, kKeepMax);
  return config;
}

}  // namespace psd

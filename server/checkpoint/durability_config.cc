#include "server/checkpoint/durability_config.h"

#include <initializer_list>

namespace psd {
namespace {

constexpr std::string_view kTypes[] = {"none", "checkpoint", "log"};
constexpr double kSecondsMax = 30 * 86'400;
constexpr uint64_t kUpdatesMax = 1ull << 40;
constexpr uint64_t kKeepMax = 1'000'000;
constexpr uint64_t kFullEveryMax = 1'000;
constexpr uint64_t kLogBytesMin = 1ull << 16, kLogBytesMax = 1ull << 40;

void readEveryBytes(ConfigReader& in, std::optional<uint64_t>& value) {
  using Json = ConfigReader::Json;
  in.declare(
      {"every_bytes",
       "Growth of the log, in bytes, from one checkpoint to the next; the log of a previous daemon counts. "
       "`auto`: eight times the newest checkpoint, at least 256 MiB. 0: no checkpoints by bytes.",
       Key::kLive},
      {{"anyOf",
        Json::array({Json{{"const", "auto"}}, Json{{"const", 0}},
                     Json{{"type", "integer"}, {"minimum", kLogBytesMin}, {"maximum", kLogBytesMax}}})},
       {"default", "auto"}});
  if (in.describes()) return;
  const std::string right = "\"auto\", 0 or an integer from " + std::to_string(kLogBytesMin) + " to " +
                            std::to_string(kLogBytesMax);
  const bool isText = in.hasText("every_bytes");
  if (!in.has("every_bytes") || (isText && in.values().text("every_bytes", "") == "auto")) {
    in.values().text("every_bytes", "auto");
    return;
  }
  value = in.values().integer("every_bytes", 0, 0, kLogBytesMax, right);
  if (*value > 0 && *value < kLogBytesMin) {
    in.fail("every_bytes", "must be " + right + ", not " + std::to_string(*value));
  }
}

void readSaved(ConfigReader& in, DurabilityConfig& config, std::string_view type) {
  in.path(
      {"path", "Folder of the checkpoints and the log, created if missing. It belongs to one daemon alone."},
      config.path, {{"minLength", 1}});
  if (in.has("path") && config.path.empty()) in.fail("path", "must be a folder, not \"\"");
  in.require("path", "is needed by type '" + std::string(type) + "': the folder for what is saved");
  in.number({"every_seconds",
             "Seconds from one checkpoint to the next, if anything has changed. 0: no checkpoints by time.",
             Key::kLive},
            config.everySeconds, {.min = 0, .max = kSecondsMax});
  in.integer({"every_updates",
              "Updates of a shard, on average over the shards, from one checkpoint to the next. 0: no "
              "checkpoints by updates.",
              Key::kLive},
             config.everyUpdates, 0, kUpdatesMax);
  in.integer({"keep",
              "Number of checkpoints that are kept, with the log since the oldest of them; without a log "
              "also the checkpoints of the whole model."},
             config.keep, 1, kKeepMax);
  in.integer({"full_every",
              "Every n-th checkpoint holds all rows of embedding tables; the others hold the rows that "
              "changed since the previous one, which is kept as long as they are. A damaged full checkpoint "
              "makes those that build on it unusable."},
             config.fullEvery, 1, kFullEveryMax);
  in.path({"resume",
           "`auto`: resume from the newest complete checkpoint in `path` and the log after it, if there "
           "is one. `none`: start without. Else the path of a checkpoint, or of a folder of them, to "
           "resume from without a log."},
          config.resume, {{"minLength", 1}, {"examples", {"auto", "none"}}});
  if (config.resume.empty()) in.fail("resume", "must be \"auto\", \"none\" or the path of a checkpoint");
}

/// Refuses the keys that belong to other types than the one that was chosen.
void refuseOthers(ConfigReader& in, DurabilityConfig::Type type) {
  const auto goesWith = [&](std::string_view types, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      in.refuse(key,
                "requires type " + std::string(types) + ", not '" + std::string(durabilityName(type)) + "'");
    }
  };
  if (type != DurabilityConfig::Type::log) goesWith("log", {"every_bytes", "segment_bytes"});
  if (type != DurabilityConfig::Type::none) return;
  goesWith("checkpoint or log", {"path", "every_seconds", "every_updates", "keep", "full_every", "resume"});
}

}  // namespace

std::string_view durabilityName(DurabilityConfig::Type type) { return kTypes[static_cast<size_t>(type)]; }

DurabilityConfig readDurability(ConfigReader in) {
  DurabilityConfig config;
  in.alternatives({"type", "How much of the model survives the daemon."}, kTypes[0],
                  {{kTypes[0], "Nothing: the model ends with the daemon."},
                   {kTypes[1], "Checkpoints during training; pushes after the last one may be lost."},
                   {kTypes[2], "Checkpoints and a log of every update; an answered push is never lost."}},
                  [&config](ConfigReader& options, std::string_view type) {
                    for (size_t i = 0; i < std::size(kTypes); i++) {
                      if (kTypes[i] == type) config.type = static_cast<DurabilityConfig::Type>(i);
                    }
                    refuseOthers(options, config.type);
                    if (!config.enabled()) return;
                    readSaved(options, config, type);
                    if (config.type != DurabilityConfig::Type::log) return;
                    readEveryBytes(options, config.everyBytes);
                    options.integer({"segment_bytes", "Size after which the log starts a new file."},
                                    config.segmentBytes, kLogBytesMin, kLogBytesMax);
                  });
  return config;
}

}  // namespace psd

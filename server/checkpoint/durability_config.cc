#include "server/checkpoint/durability_config.h"

namespace psd {
namespace {

constexpr std::string_view kTypes[] = {"none", "checkpoint", "log"};
constexpr double kSecondsMax = 30 * 86'400;
constexpr uint64_t kUpdatesMax = 1ull << 40;
constexpr uint64_t kKeepMax = 1'000'000;
constexpr uint64_t kFullEveryMax = 1'000;

std::optional<uint64_t> readEveryBytes(ObjectReader in) {
  constexpr uint64_t kLeast = 1ull << 16, kMost = 1ull << 40;
  if (!in.has("every_bytes") || in.hasText("every_bytes")) {
    in.choice("every_bytes", "auto", {"auto"});
    return {};
  }
  const uint64_t bytes = in.integer("every_bytes", 0, 0, kMost);
  if (bytes > 0 && bytes < kLeast) {
    in.fail("every_bytes", "must be \"auto\", 0 or an integer from " + std::to_string(kLeast) + " to " +
                               std::to_string(kMost) + ", not " + std::to_string(bytes));
  }
  return bytes;
}

}  // namespace

std::string_view durabilityName(DurabilityConfig::Type type) { return kTypes[static_cast<size_t>(type)]; }

DurabilityConfig readDurability(ObjectReader in) {
  DurabilityConfig config;
  const std::string type = in.choice("type", kTypes[0], {std::begin(kTypes), std::end(kTypes)});
  for (size_t i = 0; i < std::size(kTypes); i++) {
    if (kTypes[i] == type) config.type = static_cast<DurabilityConfig::Type>(i);
  }
  const auto goesWith = [&](std::string_view types, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys) {
      in.refuse(key, "goes with type " + std::string(types) + ", not with '" + type + "'");
    }
  };
  if (config.type != DurabilityConfig::Type::log) goesWith("log", {"every_bytes", "segment_bytes"});
  if (!config.enabled()) {
    goesWith("checkpoint or log", {"path", "every_seconds", "every_updates", "keep", "full_every", "resume"});
    return config;
  }
  if (!in.has("path")) in.fail("path", "is needed by type '" + type + "': the folder for checkpoints");
  config.path = in.text("path", "");
  if (in.has("path") && config.path.empty()) in.fail("path", "must be a folder, not \"\"");
  config.everySeconds = in.number("every_seconds", config.everySeconds, {.min = 0, .max = kSecondsMax});
  config.everyUpdates = in.integer("every_updates", config.everyUpdates, 0, kUpdatesMax);
  config.keep = in.integer("keep", config.keep, 1, kKeepMax);
  config.fullEvery = in.integer("full_every", config.fullEvery, 1, kFullEveryMax);
  config.resume = in.text("resume", config.resume);
  if (config.resume.empty()) in.fail("resume", "must be \"auto\", \"none\" or the path of a checkpoint");
  if (config.type == DurabilityConfig::Type::log) {
    config.everyBytes = readEveryBytes(in);
    config.segmentBytes = in.integer("segment_bytes", config.segmentBytes, 1ull << 16, 1ull << 40);
  }
  return config;
}

}  // namespace psd

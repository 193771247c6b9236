#include "server/checkpoint/departed.h"

#include <string>

#include "server/checkpoint/durability.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"

namespace psd::departed_test {
namespace {

using namespace testing;

const Departed kTwoOfThree{3, {Rank{0}, Rank{2}}};

TEST_CASE("finished ranks: the file's bytes") {
  const std::string text = formatDeparted(kTwoOfThree);
  const std::string version = PSD_VERSION;
  const std::string expected = R"({
  "format": "psd trainers",
  "format_version": 1,
  "writer": "psd )" + version + R"(",
  "world_size": 3,
  "departed": [
    0,
    2
  ],
  "crc32c": ")";
  CHECK(text.substr(0, expected.size()) == expected);
  CHECK(text.size() == expected.size() + 8 + std::string("\"\n}\n").size());
  auto read = parseDeparted(text, "it");
  PSD_REQUIRE_OK(read);
  CHECK(*read == kTwoOfThree);
}

TEST_CASE("finished ranks: a changed or missing byte is detected") {
  const std::string text = formatDeparted(kTwoOfThree);
  for (size_t i = 0; i < text.size(); i++) {
    INFO("byte " << i);
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK_FALSE(parseDeparted(changed, "it").ok());
    CHECK_FALSE(parseDeparted(text.substr(0, i), "it").ok());
  }
  const auto beyond = parseDeparted(formatDeparted({2, {Rank{2}}}), "/data/trainers.json");
  REQUIRE_FALSE(beyond.ok());
  CHECK(beyond.message() == "'/data/trainers.json' cannot be read: departed: must be ranks below world_size");
}

TEST_CASE("finished ranks are kept whatever a crash leaves") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  const Departed first{3, {Rank{0}}};
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    MemoryEnv env;
    env.crashAt(point, 7);
    const bool firstKept = writeDeparted(env, "/data", first).ok();
    const bool secondKept = firstKept && writeDeparted(env, "/data", kTwoOfThree).ok();
    const bool removed = secondKept && removeDeparted(env, "/data").ok();
    done = !env.crashed();
    env.restart(survival);
    auto found = readDeparted(env, "/data");
    PSD_REQUIRE_OK(found);
    if (removed) CHECK_FALSE(found->has_value());
    if (secondKept && *found) CHECK(**found == kTwoOfThree);
    if (firstKept && !secondKept) REQUIRE(found->has_value());
    if (*found) CHECK((**found == first || **found == kTwoOfThree));
  }
}

/// What a daemon started with `resume` reads, after a previous one saved kTwoOfThree.
std::optional<Departed> finishedRanks(MemoryEnv& env, const std::string& resume) {
  DurabilityConfig config;
  config.type = DurabilityConfig::Type::checkpoint;
  config.path = "/data";
  config.resume = resume;
  auto durability = Durability::open(env, config);
  PSD_REQUIRE_OK(durability);
  auto departed = (*durability)->departed();
  PSD_REQUIRE_OK(departed);
  return *departed;
}

TEST_CASE("finished ranks count for the daemon that resumes, and for no other") {
  MemoryEnv env;
  CHECK(finishedRanks(env, "auto") == std::nullopt);
  PSD_REQUIRE_OK(writeDeparted(env, "/data", kTwoOfThree));
  CHECK(finishedRanks(env, "auto") == kTwoOfThree);
  CHECK(finishedRanks(env, "none") == std::nullopt);
  CHECK(finishedRanks(env, "/data/checkpoint-0000000001") == std::nullopt);
  env.put("/data/trainers.json", "{}");
  CHECK(finishedRanks(env, "auto") == std::nullopt);
}

}  // namespace
}  // namespace psd::departed_test

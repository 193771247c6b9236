// Every reader of foreign bytes with its seeds, a bounded number of mutations of them, and earlier findings.

#include <algorithm>
#include <filesystem>

#include <spdlog/spdlog.h>

#include "test/fuzz/fuzz_list.h"
#include "test/fuzz/mutation.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::fuzz {
namespace {

constexpr uint64_t kSeed = 20261121;

/// Files of test/fuzz/findings/TARGET.
std::vector<std::string> findingsOf(const FuzzTarget& target) {
  std::vector<std::string> findings;
  const std::filesystem::path folder = std::string(PSD_FINDINGS_DIR) + "/" + std::string(target.name);
  if (!std::filesystem::exists(folder)) return findings;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    findings.push_back(psd::testing::readFile(file.path()));
  }
  return findings;
}

void runAll(const FuzzTarget& target, size_t mutations) {
  spdlog::set_level(spdlog::level::off);
  INFO("target " << target.name << ", seed " << kSeed);
  const std::vector<std::string> seeds = target.seeds();
  REQUIRE_FALSE(seeds.empty());
  target.run({});
  for (const std::string& seed : seeds) target.run(bytesOf(seed));
  for (const std::string& finding : findingsOf(target)) target.run(bytesOf(finding));
  psd::testing::Random random(kSeed);
  for (size_t i = 0; i < mutations; i++) target.run(bytesOf(mutated(seeds, random)));
}

TEST_CASE("fuzzed: configurations") { runAll(kConfigTarget, 20'000); }
TEST_CASE("fuzzed: messages to the daemon") { runAll(kMessagesTarget, 1500); }
TEST_CASE("fuzzed: gradients in every codec") { runAll(kCodecTarget, 200'000); }
TEST_CASE("fuzzed: checkpoints") { runAll(kCheckpointTarget, 5000); }
TEST_CASE("fuzzed: segments of the log") { runAll(kLogTarget, 10'000); }
TEST_CASE("fuzzed: safetensors files") { runAll(kSafetensorsTarget, 20'000); }
TEST_CASE("fuzzed: IDX files") { runAll(kIdxTarget, 20'000); }
TEST_CASE("fuzzed: files of samples") { runAll(kColumnsTarget, 20'000); }
TEST_CASE("fuzzed: status documents") { runAll(kStatusTarget, 5000); }
TEST_CASE("fuzzed: plans") { runAll(kPlanTarget, 20'000); }
TEST_CASE("fuzzed: answers of etcd") { runAll(kEtcdTarget, 20'000); }
TEST_CASE("fuzzed: patches of versions") { runAll(kPatchTarget, 10'000); }
TEST_CASE("fuzzed: files of sparse examples") { runAll(kSparseTarget, 3000); }

TEST_CASE("every target is run here, and their names are unique") {
  std::vector<std::string_view> names;
  for (const FuzzTarget* target : kFuzzTargets) names.push_back(target->name);
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  CHECK(names.size() == 15);
}

TEST_CASE("mutations of seeds depend on the random numbers alone") {
  const std::vector<std::string> seeds = kConfigTarget.seeds();
  psd::testing::Random one(1), same(1), other(2);
  bool differs = false;
  for (int i = 0; i < 100; i++) {
    const std::string made = mutated(seeds, one);
    REQUIRE(made == mutated(seeds, same));
    differs |= made != mutated(seeds, other);
  }
  CHECK(differs);
}

}  // namespace
}  // namespace psd::fuzz

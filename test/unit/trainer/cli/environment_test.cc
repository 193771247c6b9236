#include "trainer/cli/environment.h"

#include <map>
#include <string>

#include "test/support/catch.h"

namespace psd::environment_test {
namespace {

using Catch::Matchers::Contains;
using Variables = std::map<std::string, std::string>;

EnvironmentGetter getter(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

Result<Placement> place(std::optional<std::string> rank, std::optional<std::string> worldSize,
                        const Variables& variables) {
  return resolvePlacement(rank, worldSize, getter(variables));
}

Result<std::vector<std::string>> servers(const std::vector<std::string>& flags, const Variables& variables) {
  return resolveServers(flags, getter(variables));
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("without flags and variables a trainer is alone") {
  const auto placement = place({}, {}, {});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->rank == Rank{0});
  CHECK(placement->worldSize == 1);
  CHECK(placement->localWorldSize == 1);
}

TEST_CASE("torchrun's variables place a trainer") {
  const auto placement =
      place({}, {}, {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->rank == Rank{5});
  CHECK(placement->worldSize == 8);
  CHECK(placement->localRank == 1);
  CHECK(placement->localWorldSize == 4);
}

TEST_CASE("Slurm's variables place a trainer, torchrun's take precedence") {
  auto placement = place({}, {}, {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "3"}});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->rank == Rank{2});
  CHECK(placement->worldSize == 3);
  CHECK(placement->localRank == 2);
  placement =
      place({}, {}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->rank == Rank{1});
  CHECK(placement->worldSize == 2);
}

TEST_CASE("flags win, and a variable that is not needed is not read") {
  const auto placement = place("0", "2", {{"RANK", "nonsense"}, {"WORLD_SIZE", "8"}});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->rank == Rank{0});
  CHECK(placement->worldSize == 2);
  CHECK(place("1", {}, {{"WORLD_SIZE", "4"}})->worldSize == 4);
}

TEST_CASE("a rank may be left to the daemon, with the world size or without") {
  auto placement = place("auto", {}, {});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->anyRank);
  CHECK(placement->worldSize == 0);
  CHECK(placement->localWorldSize == 1);
  placement = place("auto", "4", {});
  PSD_REQUIRE_OK(placement);
  CHECK(placement->anyRank);
  CHECK(placement->worldSize == 4);
  CHECK_FALSE(place("0", "4", {})->anyRank);
}

TEST_CASE("an empty variable counts as not set") {
  CHECK(place({}, {}, {{"RANK", ""}, {"WORLD_SIZE", ""}})->worldSize == 1);
}

TEST_CASE("bad ranks name the flag or variable") {
  CHECK_THAT(place("2", "2", {}).message(),
             Contains("--rank: rank 2 is not below the world size 2 (--world-size)"));
  CHECK_THAT(place({}, {}, {{"RANK", "9"}, {"SLURM_NTASKS", "4"}}).message(),
             Contains("RANK: rank 9 is not below the world size 4 (SLURM_NTASKS)"));
  CHECK_THAT(place("-1", "2", {}).message(), Contains("--rank: '-1' is not a whole number from 0"));
  CHECK_THAT(place("0", "0", {}).message(), Contains("--world-size: '0' is not a whole number"));
  CHECK_THAT(place({}, {}, {{"RANK", "0"}, {"WORLD_SIZE", "two"}}).message(),
             Contains("WORLD_SIZE: 'two' is not a whole number from 1"));
  CHECK_THAT(place("0", {}, {}).message(),
             Contains("--world-size (or WORLD_SIZE, SLURM_NTASKS) is missing, though --rank"));
  CHECK_THAT(place({}, "2", {}).message(), Contains("--rank (or RANK, SLURM_PROCID) is missing"));
  CHECK_THAT(place({}, {}, {{"LOCAL_RANK", "x"}}).message(), Contains("LOCAL_RANK: 'x'"));
  CHECK_THAT(place({}, {}, {{"LOCAL_WORLD_SIZE", "0"}}).message(), Contains("LOCAL_WORLD_SIZE"));
}

TEST_CASE("servers: flags, else PSD_SERVER, else MASTER_ADDR with psd's port, else this machine") {
  const Variables all{
      {"PSD_SERVER", "tcp://b:2,unix:///run/psd.sock"}, {"MASTER_ADDR", "c"}, {"MASTER_PORT", "29500"}};
  CHECK(*servers({"tcp://a:1"}, all) == Texts{"tcp://a:1"});
  CHECK(*servers({"tcp://a:1,unix:///s", "tcp://c:3"}, {}) == Texts{"tcp://a:1", "unix:///s", "tcp://c:3"});
  CHECK(*servers({}, all) == Texts{"tcp://b:2", "unix:///run/psd.sock"});
  CHECK(*servers({}, {{"MASTER_ADDR", "c"}, {"MASTER_PORT", "29500"}}) == Texts{"tcp://c:5500"});
  CHECK(*servers({}, {{"MASTER_ADDR", "::1"}}) == Texts{"tcp://[::1]:5500"});
  CHECK(*servers({}, {}) == Texts{"tcp://localhost:5500"});
}

TEST_CASE("bad addresses name the flag or variable") {
  CHECK_THAT(servers({"localhost:5500"}, {}).message(), Contains("--server: ") && Contains("localhost:5500"));
  CHECK_THAT(servers({}, {{"PSD_SERVER", "tcp://a:1,http://b"}}).message(),
             Contains("PSD_SERVER: ") && Contains("http://b"));
  CHECK_THAT(servers({","}, {}).message(), Contains("--server: address ','"));
  CHECK_THAT(servers({"tcp://a:0"}, {}).message(), Contains("an address to listen on"));
  CHECK_THAT(servers({"tcp://*:5500"}, {}).message(), Contains("an address to listen on"));
}

}  // namespace psd::environment_test

#include "test/support/memory_env.h"

#include <string>

#include "test/support/catch.h"

namespace psd::testing {
namespace {

Status append(WritableFile& file, const std::string& text) {
  return file.append(std::as_bytes(std::span(text)));
}

/// "/a" with "synced" on the disk and "more" not yet; "/b" whose name is not durable.
void fill(MemoryEnv& env) {
  auto a = env.create("/a");
  PSD_REQUIRE_OK(a);
  PSD_REQUIRE_OK(append(**a, "synced"));
  PSD_REQUIRE_OK((*a)->sync());
  PSD_REQUIRE_OK(env.syncFolder("/"));
  PSD_REQUIRE_OK(append(**a, "more"));
  auto b = env.create("/b");
  PSD_REQUIRE_OK(b);
  PSD_REQUIRE_OK(append(**b, "beta"));
  PSD_REQUIRE_OK((*b)->sync());
}

TEST_CASE("after a crash the disk in memory holds what was synced, and of the rest what the test requests") {
  struct Case {
    Survival survival;
    std::string a;
    bool b;
  };
  const Case expected =
      GENERATE(Case{Survival::syncedOnly, "synced", false}, Case{Survival::everything, "syncedmore", true},
               Case{Survival::namesWithoutData, "synced", true},
               Case{Survival::namesWithZeros, std::string("synced\0\0\0\0", 10), true},
               Case{Survival::namesWithHalfData, "syncedmo", true},
               Case{Survival::dataWithoutNames, "syncedmore", false});
  MemoryEnv env;
  fill(env);
  env.restart(expected.survival);
  CHECK(env.bytes("/a") == expected.a);
  CHECK(env.exists("/b").value() == expected.b);
  CHECK(env.bytes("/b") == (expected.b ? "beta" : ""));
}

TEST_CASE("operations are counted, and power fails in the chosen one") {
  MemoryEnv counting;
  fill(counting);
  CHECK(counting.operations() == std::vector<std::string>{"create /a", "append /a 6", "sync /a",
                                                          "syncFolder /", "append /a 4", "create /b",
                                                          "append /b 4", "sync /b"});
  MemoryEnv env;
  env.crashAt(1, 8);
  auto file = env.create("/a");
  PSD_REQUIRE_OK(file);
  CHECK_FALSE(append(**file, "synced").ok());
  CHECK(env.crashed());
  CHECK_FALSE((*file)->sync().ok());
  env.restart(Survival::everything);
  CHECK(env.bytes("/a") == "syn");
  CHECK_FALSE(append(**file, "a file of the life before").ok());
}

TEST_CASE("a full disk accepts half of an append, and can be healed") {
  MemoryEnv env;
  auto file = env.create("/a");
  PSD_REQUIRE_OK(file);
  env.fail({"append"}, "No space left on device");
  CHECK(append(**file, "1234").message() == "'/a': cannot append: No space left on device");
  env.heal();
  PSD_REQUIRE_OK(append(**file, "5"));
  CHECK(env.bytes("/a") == "125");
}

TEST_CASE("what a dead process wrote is visible to the next one, and can still be lost") {
  MemoryEnv env;
  fill(env);
  env.restartProcess();
  CHECK(env.bytes("/a") == "syncedmore");
  CHECK(env.exists("/b").value());
  env.restart(Survival::syncedOnly);
  CHECK(env.bytes("/a") == "synced");
  CHECK_FALSE(env.exists("/b").value());
}

TEST_CASE("no later sync writes what a failed sync did not") {
  MemoryEnv env;
  auto file = env.create("/a");
  PSD_REQUIRE_OK(file);
  PSD_REQUIRE_OK(env.syncFolder("/"));
  PSD_REQUIRE_OK(append(**file, "first"));
  env.fail({"sync"}, "Input/output error");
  CHECK_FALSE((*file)->sync().ok());
  env.heal();
  PSD_REQUIRE_OK(append(**file, "next"));
  PSD_REQUIRE_OK((*file)->sync());
  CHECK(env.bytes("/a") == "firstnext");
  env.restart(Survival::everything);
  CHECK(env.bytes("/a") == std::string(5, '\0') + "next");
}

}  // namespace
}  // namespace psd::testing

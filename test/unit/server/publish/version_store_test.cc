#include "server/publish/version_store.h"

#include <cstring>
#include <string>

#include <fmt/format.h>

#include "server/replica/memory_files.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/unit/server/publish/small_versions.h"

namespace psd::version_store_test {
namespace {

using namespace testing;
using namespace small_versions;
using std::chrono::seconds;

/// The history of a store that has published its first version, and ended.
uint64_t historyOfFirst(Env& env) {
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  PSD_REQUIRE_OK(publish(**store, 1));
  return (*store)->history();
}

TEST_CASE("Version store: a version's file says what it is") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  const auto made = publish(**store, 5);
  PSD_REQUIRE_OK(made);
  CHECK(made->number == 1);
  const std::string file = env.bytes("/data/versions/version-0000000001.safetensors");
  CHECK(made->bytes == file.size());
  CHECK(file.find(R"("psd.version":"1")") != std::string::npos);
  CHECK(file.find(fmt::format(R"("psd.history":"{:016x}")", (*store)->history())) != std::string::npos);
  CHECK(file.find(R"("psd.step":"5")") != std::string::npos);
  CHECK(file.find(R"("psd.moment":"snapshot")") != std::string::npos);
  CHECK(file.find(R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})") != std::string::npos);
  CHECK(file.ends_with(std::string(32, '\5')));
  const auto found = (*store)->find(0);
  PSD_REQUIRE_OK(found);
  CHECK(bytesOf(**store, 1) == file);
  CHECK(found->moment == VersionMoment::snapshot);
}

/// The part of daemon 1 of 2, of round `number` with the moment `id`.
Result<VersionInfo> publishPart(VersionStore& store, uint64_t number, uint64_t id, uint8_t fill) {
  const std::vector<std::byte> values = valuesOf(fill);
  return store.publish({.number = number,
                        .step = number,
                        .created = "2026-11-29T00:00:00Z",
                        .moment = VersionMoment::round,
                        .part = 1,
                        .parts = 2,
                        .momentId = id},
                       {safetensorsEntries(model()), values});
}

TEST_CASE("Version store: parts have the numbers of their rounds") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  for (const uint64_t number : {40, 50, 70}) PSD_REQUIRE_OK(publishPart(**store, number, number + 1, 1));
  CHECK(numbersOf(**store) == std::vector<uint64_t>{50, 70});
  const auto found = (*store)->find(70);
  PSD_REQUIRE_OK(found);
  CHECK((found->part == 1 && found->parts == 2 && found->momentId == 71));
  const std::string file = bytesOf(**store, 70);
  CHECK(file.size() == found->bytes);
  CHECK(file.find(R"("psd.part":"1/2")") != std::string::npos);
  CHECK(file.find(R"("psd.moment_id":"0000000000000047")") != std::string::npos);
  CHECK(bytesOf(**store, 50).size() == file.size());
}

TEST_CASE("Version store: a round that is made again") {
  MemoryEnv env;
  uint64_t history = 0;
  {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    history = (*store)->history();
    PSD_REQUIRE_OK(publishPart(**store, 10, 7, 1));
    PSD_REQUIRE_OK(publishPart(**store, 20, 8, 2));
  }
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  // Of the same pushes it has the same values, and the version stays.
  const auto same = publishPart(**store, 20, 8, 2);
  PSD_REQUIRE_OK(same);
  CHECK(same->history == history);
  CHECK((*store)->history() == history);
  // Of others another history begins, which no reader mistakes for the first.
  const auto other = publishPart(**store, 10, 9, 1);
  PSD_REQUIRE_OK(other);
  CHECK(other->history != history);
  CHECK((*store)->history() == other->history);
  CHECK(numbersOf(**store) == std::vector<uint64_t>{10});
  CHECK(bytesOf(**store, 10).find(fmt::format("{:016x}", other->history)) != std::string::npos);
  PSD_REQUIRE_OK(publishPart(**store, 15, 10, 3));
  const auto again = openAt(env);
  PSD_REQUIRE_OK(again);
  CHECK((*again)->history() == other->history);
  CHECK(numbersOf(**again) == std::vector<uint64_t>{10, 15});
}

TEST_CASE("Version store: the same moment with other values is another history too") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  const auto first = publishPart(**store, 10, 7, 1), second = publishPart(**store, 10, 7, 2);
  PSD_REQUIRE_OK(first);
  PSD_REQUIRE_OK(second);
  CHECK(first->history != second->history);
  CHECK(bytesOf(**store, 10).ends_with(std::string(32, '\2')));
}

TEST_CASE("Version store: what can be read") {
  MemoryFiles files;
  const auto store = openAt(files);
  PSD_REQUIRE_OK(store);
  const auto refusal = [&](uint64_t number, uint64_t offset, uint64_t count) {
    const auto read = (*store)->read(number, offset, count);
    REQUIRE_FALSE(read.ok());
    return read.message();
  };
  CHECK(refusal(1, 0, 1) == "no version is published yet");
  const auto first = publish(**store, 1);
  PSD_REQUIRE_OK(first);
  const auto last = (*store)->read(1, first->bytes - 2, 2);
  PSD_REQUIRE_OK(last);
  CHECK((*last)[1] == std::byte{1});
  const std::string all = fmt::format("are not in the {} bytes of version 1", first->bytes);
  CHECK(refusal(1, 0, 0) == "0 bytes from 0 on " + all);
  CHECK(refusal(1, first->bytes - 1, 2) == fmt::format("2 bytes from {} on ", first->bytes - 1) + all);
  CHECK(refusal(1, UINT64_MAX, 2) == fmt::format("2 bytes from {} on ", UINT64_MAX) + all);
  for (uint8_t i = 2; i < 6; i++) PSD_REQUIRE_OK(publish(**store, i));
  CHECK(refusal(1, 0, 1) == "version 1 was removed; the oldest is 4 and the newest 5");
  CHECK(bytesOf(**store, 4).ends_with(std::string(32, '\4')));
}

TEST_CASE("Version store: the next daemon has the same versions, leases and history") {
  MemoryEnv env;
  std::map<uint64_t, std::string> before;
  uint64_t history = 0;
  {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    history = (*store)->history();
    PSD_REQUIRE_OK(publish(**store, 1));
    PSD_REQUIRE_OK((*store)->lease(77, 1, seconds(600), "reader"));
    for (uint8_t i = 2; i < 6; i++) PSD_REQUIRE_OK(publish(**store, i));
    for (const uint64_t number : numbersOf(**store)) before[number] = bytesOf(**store, number);
    CHECK(numbersOf(**store) == std::vector<uint64_t>{1, 4, 5});
  }
  env.restartProcess();
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  CHECK((*store)->history() == history);
  std::map<uint64_t, std::string> after;
  for (const uint64_t number : numbersOf(**store)) after[number] = bytesOf(**store, number);
  CHECK(after == before);
  const auto next = publish(**store, 9);
  PSD_REQUIRE_OK(next);
  CHECK(next->number == 6);
  CHECK(numbersOf(**store) == std::vector<uint64_t>{1, 5, 6});  // the lease of its reader still holds 1
  (*store)->release(77);                                        // unknown here: nothing ends
  CHECK((*store)->find(1).ok());
}

TEST_CASE("Version store: leases that have ended hold nothing after a restart") {
  MemoryEnv env;
  {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    PSD_REQUIRE_OK(publish(**store, 1));
    PSD_REQUIRE_OK((*store)->lease(77, 0, seconds(600), "reader"));
    (*store)->release(77);
    (*store)->prune();
  }
  env.restartProcess();
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  for (uint8_t i = 2; i < 5; i++) PSD_REQUIRE_OK(publish(**store, i));
  CHECK(numbersOf(**store) == std::vector<uint64_t>{3, 4});
}

TEST_CASE("Version store: readers lease versions also while the disk is full") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  for (uint8_t i = 1; i < 3; i++) PSD_REQUIRE_OK(publish(**store, i));
  env.fail({"create"}, "no space left on device");
  PSD_REQUIRE_OK((*store)->lease(77, 1, seconds(60), "reader"));
  CHECK(bytesOf(**store, 1).ends_with(std::string(32, '\1')));
  env.heal();
  for (uint8_t i = 3; i < 6; i++) PSD_REQUIRE_OK(publish(**store, i));
  CHECK(numbersOf(**store) == std::vector<uint64_t>{1, 4, 5});
}

TEST_CASE("Version store: a restart holds a lease no longer than it lasts") {
  MemoryEnv env;
  std::string index;
  for (int i = 0; i < 5; i++) {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    if (i == 0) {
      PSD_REQUIRE_OK(publish(**store, 1));
      PSD_REQUIRE_OK((*store)->lease(77, 1, seconds(60), "reader"));
    } else {
      PublishStatus status;
      (*store)->fillStatus(status);
      REQUIRE(status.leases.size() == 1);
      CHECK(status.leases[0].reader == "an earlier reader");
      CHECK(status.leases[0].secondsLeft <= 181);
      (*store)->prune();
    }
    if (i > 1) CHECK(env.bytes("/data/versions/versions.json") == index);
    index = env.bytes("/data/versions/versions.json");
    env.restartProcess();
  }
}

TEST_CASE("Version store: the number of a version that is missing is not given again") {
  MemoryEnv env;
  uint64_t history = 0;
  {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    history = (*store)->history();
    for (uint8_t i = 1; i < 3; i++) PSD_REQUIRE_OK(publish(**store, i));
  }
  PSD_REQUIRE_OK(env.remove(versionPath(kFolder, 2)));
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  CHECK((*store)->history() != history);
  const auto next = publish(**store, 3);
  PSD_REQUIRE_OK(next);
  CHECK(next->number == 3);
}

TEST_CASE("Version store: files with numbers that no daemon has given are ignored") {
  MemoryEnv env;
  env.put("/data/versions/version-18446744073709551615.safetensors", "");
  env.put("/data/versions/version-7.safetensors", "");
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  const auto made = publish(**store, 1);
  PSD_REQUIRE_OK(made);
  CHECK(made->number == 1);
}

TEST_CASE("Version store: a reader that alternates between versions writes the index once for each") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  for (uint8_t i = 1; i < 3; i++) PSD_REQUIRE_OK(publish(**store, i));
  for (const uint64_t number : {1, 2}) PSD_REQUIRE_OK((*store)->lease(77, number, seconds(60), "reader"));
  const size_t before = env.operations().size();
  for (int i = 0; i < 10; i++) PSD_REQUIRE_OK((*store)->lease(77, 1 + i % 2, seconds(60), "reader"));
  CHECK(env.operations().size() == before);
}

TEST_CASE("Version store: a file that another program has written is not replaced") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  env.put(versionPath(kFolder, 1), "another's");
  const auto made = publish(**store, 1);
  REQUIRE_FALSE(made.ok());
  CHECK(made.message().find("exists already") != std::string::npos);
  CHECK(env.bytes(versionPath(kFolder, 1)) == "another's");
  const auto next = publish(**store, 2);
  PSD_REQUIRE_OK(next);
  CHECK(next->number == 2);
}

TEST_CASE("Version store: without its files the numbers belong to another history") {
  MemoryEnv env;
  const uint64_t history = historyOfFirst(env);
  PSD_REQUIRE_OK(env.remove(versionPath(kFolder, 1)));
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  CHECK((*store)->history() != history);
}

TEST_CASE("Version store: a damaged file is skipped, and its number is not used again") {
  MemoryEnv env;
  {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    for (uint8_t i = 1; i < 3; i++) PSD_REQUIRE_OK(publish(**store, i));
  }
  const std::string path = versionPath(kFolder, 2);
  const std::string whole = env.bytes(path);
  const std::string damaged =
      GENERATE_COPY(whole.substr(0, whole.size() - 1), std::string("x"), std::string(),
                    std::string(8, '\xff') + whole.substr(8), "{" + whole);
  env.put(path, damaged);
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  CHECK(numbersOf(**store) == std::vector<uint64_t>{1});
  const auto next = publish(**store, 3);
  PSD_REQUIRE_OK(next);
  CHECK(next->number == 3);
}

TEST_CASE("Version store: an announced version survives a power failure with its bytes") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    MemoryEnv env;
    env.crashAt(point, 7);
    std::map<uint64_t, std::string> announced;
    uint64_t newest = 0, leased = 0;
    if (const auto store = openAt(env); store.ok()) {
      for (uint8_t i = 1; i < 5; i++) {
        const auto made = publish(**store, i);
        if (!made.ok()) continue;
        newest = made->number;
        announced[newest] = env.bytes(versionPath(kFolder, newest));
        if (i == 1 && (*store)->lease(7, 1, seconds(600), "reader").ok()) leased = 1;
      }
    }
    done = !env.crashed();
    env.restart(survival);
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    for (const VersionInfo& info : (*store)->versions()) {
      const auto known = announced.find(info.number);
      if (known != announced.end()) CHECK(bytesOf(**store, info.number) == known->second);
    }
    if (newest > 0) {
      CHECK(numbersOf(**store).back() >= newest);
      // A newer one that was never announced may have removed it.
      const std::vector<uint64_t> numbers = numbersOf(**store);
      if (numbers.back() == newest) CHECK(bytesOf(**store, newest) == announced[newest]);
    }
    if (leased > 0) CHECK((*store)->find(leased).ok());
    const auto next = publish(**store, 9);
    PSD_REQUIRE_OK(next);
    CHECK(next->number > newest);
    if (leased > 0) CHECK((*store)->find(leased).ok());
  }
}

TEST_CASE("Version store: a full disk fails the version and loses none") {
  MemoryEnv env;
  const auto store = openAt(env);
  PSD_REQUIRE_OK(store);
  PSD_REQUIRE_OK(publish(**store, 1));
  env.fail({"append"}, "no space left on device");
  const auto failed = publish(**store, 2);
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.message().find("version-0000000002.safetensors") != std::string::npos);
  CHECK(failed.message().find("no space left on device") != std::string::npos);
  env.heal();
  CHECK(numbersOf(**store) == std::vector<uint64_t>{1});
  const auto next = publish(**store, 3);
  PSD_REQUIRE_OK(next);
  CHECK(next->number == 3);
}

TEST_CASE("Version store: a start removes what a dead process left unfinished") {
  MemoryEnv env;
  env.put("/data/versions/version-0000000001.safetensors.tmp.4711", "half");
  env.put("/data/versions/versions.json.tmp.4711", "half");
  const std::vector<std::string> others = {"notes.tmp.4711", "version-0000000001.safetensors.tmp.old",
                                           "x.tmp."};
  for (const std::string& name : others) env.put("/data/versions/" + name, "a user's");
  PSD_REQUIRE_OK(openAt(env));
  for (const std::string& name : others) CHECK(env.bytes("/data/versions/" + name) == "a user's");
  CHECK(env.files().size() == others.size());
}

TEST_CASE("Version store: who waits learns of the version, or of the end") {
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  MemoryFiles files;
  const auto store = openAt(files);
  PSD_REQUIRE_OK(store);
  auto first = (*store)->whenPublished(1), third = (*store)->whenPublished(3);
  { const auto dropped = (*store)->whenPublished(1); }
  CHECK_FALSE(first.poll(scope));
  PSD_REQUIRE_OK(publish(**store, 1));
  const auto got = first.wait(scope);
  PSD_REQUIRE_OK(got);
  CHECK(got->number == 1);
  CHECK_FALSE(third.poll(scope));
  const auto known = (*store)->whenPublished(0).wait(scope);
  PSD_REQUIRE_OK(known);
  CHECK(known->number == 1);
  (*store)->end({ErrorCode::shuttingDown, "over"});
  CHECK(third.wait(scope).message() == "over");
  CHECK((*store)->whenPublished(1).wait(scope).message() == "over");
}

TEST_CASE("Version store: another history begins where versions may be missing") {
  MemoryEnv env;
  const uint64_t first = historyOfFirst(env);
  {
    const auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    CHECK((*store)->history() == first);
  }
  uint64_t second = 0;
  {
    const auto store = VersionStore::open({.env = borrowed(env), .folder = kFolder, .hasAll = false}, kTerms);
    PSD_REQUIRE_OK(store);
    second = (*store)->history();
    CHECK(second != first);
  }
  const auto store = openAt(env);  // before any version of it
  PSD_REQUIRE_OK(store);
  CHECK((*store)->history() == second);
  const auto made = publish(**store, 2);
  PSD_REQUIRE_OK(made);
  CHECK(made->number == 2);
  CHECK(made->history == second);
}

}  // namespace
}  // namespace psd::version_store_test

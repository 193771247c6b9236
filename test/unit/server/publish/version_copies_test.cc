#include <span>
#include <string>

#include <kj/async.h>

#include "server/publish/version_store.h"
#include "server/replica/memory_files.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/unit/server/publish/small_versions.h"

namespace psd::version_copies_test {
namespace {

using namespace testing;
using namespace small_versions;
using std::chrono::seconds;

Result<std::shared_ptr<VersionStore>> openCopies(Env& env) {
  return VersionStore::open({.env = borrowed(env), .folder = "/copy", .copies = true}, kTerms);
}

/// Publishes a version of 8 KiB, of which few bytes are `fill`.
Result<VersionInfo> publishLarge(VersionStore& store, uint8_t fill) {
  const ModelSpec large{"large", {{"a", DType::f32, {2048}}}, {}};
  std::vector<std::byte> values(2048 * sizeof(float));
  for (const size_t at : {0, 4000, 8000}) values[at] = std::byte{fill};
  return store.publish({.step = fill, .created = "2026-11-29T00:00:00Z", .moment = VersionMoment::snapshot},
                       {safetensorsEntries(large), values});
}

/// Hands version `number` of a store to another one.
Result<VersionInfo> copy(VersionStore& from, uint64_t number, VersionStore& to) {
  const auto info = from.find(number);
  PSD_REQUIRE_OK(info);
  const std::string bytes = bytesOf(from, number);
  return to.adopt(*info, std::as_bytes(std::span(bytes)));
}

/// The stores of two histories, which have published this many versions.
struct TwoHistories {
  MemoryEnv one, another;
  std::shared_ptr<VersionStore> source, next;

  TwoHistories(uint8_t ofSource, uint8_t ofNext)
      : source(filled(one, 1, ofSource)), next(filled(another, 9, ofNext)) {}

  static std::shared_ptr<VersionStore> filled(Env& env, uint8_t fill, uint8_t count) {
    auto store = openAt(env);
    PSD_REQUIRE_OK(store);
    for (uint8_t i = 0; i < count; i++) PSD_REQUIRE_OK(publish(**store, fill + i));
    return *std::move(store);
  }
};

TEST_CASE("Version store: an adopted version keeps its bytes, number and history, also after a restart") {
  MemoryEnv env;
  const auto source = openAt(env);
  PSD_REQUIRE_OK(source);
  for (uint8_t i = 1; i < 4; i++) PSD_REQUIRE_OK(publishLarge(**source, i));
  {
    const auto store = openCopies(env);
    PSD_REQUIRE_OK(store);
    CHECK((*store)->history() == 0);
    for (const uint64_t number : {2, 3}) PSD_REQUIRE_OK(copy(**source, number, **store));
    CHECK(numbersOf(**store) == std::vector<uint64_t>{2, 3});
    const auto again = copy(**source, 3, **store);
    REQUIRE_FALSE(again.ok());
    CHECK(again.message() == "version 3 is not newer than version 3, which is here");
    const auto patch = (*store)->patchBytes((*source)->history(), 2, 3);
    PSD_REQUIRE_OK(patch);
    CHECK(*patch > 0);
  }
  env.restartProcess();
  const auto store = openCopies(env);
  PSD_REQUIRE_OK(store);
  CHECK((*store)->history() == (*source)->history());
  CHECK(numbersOf(**store) == std::vector<uint64_t>{2, 3});
  CHECK(bytesOf(**store, 3) == bytesOf(**source, 3));
  PSD_REQUIRE_OK(publishLarge(**source, 4));
  PSD_REQUIRE_OK(copy(**source, 4, **store));
  CHECK(numbersOf(**store) == std::vector<uint64_t>{3, 4});
}

TEST_CASE("Version store: a version of another history replaces all adopted ones") {
  const TwoHistories from(3, 1);
  MemoryEnv env;
  const auto store = openCopies(env);
  PSD_REQUIRE_OK(store);
  for (const uint64_t number : {2, 3}) PSD_REQUIRE_OK(copy(*from.source, number, **store));
  PSD_REQUIRE_OK((*store)->lease(7, 2, seconds(60), "reader"));
  PSD_REQUIRE_OK(copy(*from.next, 1, **store));
  CHECK(numbersOf(**store) == std::vector<uint64_t>{1});
  CHECK((*store)->history() == from.next->history());
  CHECK(bytesOf(**store, 1) == bytesOf(*from.next, 1));
  PSD_REQUIRE_OK(publish(*from.next, 10));
  PSD_REQUIRE_OK(copy(*from.next, 2, **store));
  PSD_REQUIRE_OK((*store)->lease(8, 2, seconds(60), "reader"));
  env.restartProcess();
  const auto after = openCopies(env);
  PSD_REQUIRE_OK(after);
  CHECK(numbersOf(**after) == std::vector<uint64_t>{1, 2});
}

TEST_CASE("Version store: a version of another history that cannot be kept leaves the others in place") {
  const TwoHistories from(1, 1);
  MemoryEnv env;
  const auto store = openCopies(env);
  PSD_REQUIRE_OK(store);
  PSD_REQUIRE_OK(copy(*from.source, 1, **store));
  SECTION("the disk is full") {
    env.fail({"append"}, "no space left on device");
    CHECK_FALSE(copy(*from.next, 1, **store).ok());
    env.heal();
  }
  SECTION("the limit is too low") {
    (*store)->follow({.keep = 2, .bytes = 100, .leases = 16});
    const auto refused = (*store)->admitsCopy(*from.next->find(1));
    CHECK(refused.error().code == ErrorCode::overloaded);
    CHECK_FALSE(copy(*from.next, 1, **store).ok());
  }
  CHECK(bytesOf(**store, 1) == bytesOf(*from.source, 1));
  CHECK((*store)->history() == from.source->history());
}

TEST_CASE("Version store: another history ends a wait for a larger number") {
  const TwoHistories from(3, 1);
  MemoryEnv env;
  const auto store = openCopies(env);
  PSD_REQUIRE_OK(store);
  kj::EventLoop loop;
  kj::WaitScope scope(loop);
  auto first = (*store)->whenPublished(3);
  PSD_REQUIRE_OK(copy(*from.source, 2, **store));
  CHECK_FALSE(first.poll(scope));
  auto later = (*store)->whenPublished(4);
  PSD_REQUIRE_OK(copy(*from.next, 1, **store));
  REQUIRE(later.poll(scope));
  CHECK(later.wait(scope)->history == from.next->history());
  CHECK_FALSE(first.poll(scope));
}

TEST_CASE("Version store: a power failure while another history begins mixes no versions") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  const TwoHistories from(2, 2);
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    MemoryEnv env;
    bool adopted = false;
    {
      const auto store = openCopies(env);
      PSD_REQUIRE_OK(store);
      for (const uint64_t number : {1, 2}) PSD_REQUIRE_OK(copy(*from.source, number, **store));
      env.crashAt(env.operations().size() + point, 7);
      adopted = copy(*from.next, 2, **store).ok();
    }
    done = !env.crashed();
    env.restart(survival);
    const auto store = openCopies(env);
    PSD_REQUIRE_OK(store);
    for (const VersionInfo& info : (*store)->versions()) {
      CHECK(info.history == (*store)->history());
      const bool isNext = info.history == from.next->history();
      CHECK(bytesOf(**store, info.number) == bytesOf(isNext ? *from.next : *from.source, info.number));
    }
    if (adopted) CHECK(numbersOf(**store) == std::vector<uint64_t>{2});
    if (adopted) CHECK((*store)->history() == from.next->history());
  }
}

TEST_CASE("Version store: damaged bytes are not adopted") {
  MemoryEnv env;
  const auto source = openAt(env);
  PSD_REQUIRE_OK(source);
  const auto info = publish(**source, 1);
  PSD_REQUIRE_OK(info);
  const auto store = openCopies(env);
  PSD_REQUIRE_OK(store);
  std::string bytes = bytesOf(**source, 1);
  bytes.back() ^= 1;
  const auto adopted = (*store)->adopt(*info, std::as_bytes(std::span(bytes)));
  REQUIRE_FALSE(adopted.ok());
  CHECK(adopted.error().code == ErrorCode::io);
  CHECK(numbersOf(**store).empty());
}

TEST_CASE("Version store: copies and published versions do not share a folder") {
  MemoryEnv env;
  const auto source = openAt(env);
  PSD_REQUIRE_OK(source);
  PSD_REQUIRE_OK(publish(**source, 1));
  const auto refused = VersionStore::open({.env = borrowed(env), .folder = kFolder, .copies = true}, kTerms);
  REQUIRE_FALSE(refused.ok());
  CHECK(
      refused.message() ==
      "'/data/versions' has versions that a daemon has published there: a replica needs a folder of its own");
  {
    const auto store = openCopies(env);
    PSD_REQUIRE_OK(store);
    PSD_REQUIRE_OK(copy(**source, 1, **store));
  }
  // A replica may lag behind its source, so publishing there begins another history.
  const auto promoted = VersionStore::open({.env = borrowed(env), .folder = "/copy"}, kTerms);
  PSD_REQUIRE_OK(promoted);
  CHECK((*promoted)->history() != (*source)->history());
  const auto made = publish(**promoted, 2);
  PSD_REQUIRE_OK(made);
  CHECK(made->number == 2);
}

}  // namespace
}  // namespace psd::version_copies_test

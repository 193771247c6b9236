// The contract of every engine: the one in memory and a real etcd.

#include <memory>

#include "test/contract/engine_rig.h"

namespace psd::engine_contract_test {
namespace {

using testing::EngineLoop;

/// Two daemons with one register in memory.
struct MemoryRig {
  EngineLoop loop;
  testing::MemoryRegister all;
  testing::MemoryEngine one{all}, other{all};
};

/// Two daemons with one etcd.
struct EtcdRig {
  EngineLoop loop;
  std::unique_ptr<testing::EtcdProcess> process = testing::etcdOrSkip(loop);
  std::unique_ptr<Etcd> first = loop.etcd(process->members()), second = loop.etcd(process->members());
  Etcd &one = *first, &other = *second;
};

const std::string kKey = "/psd/test/plan";

#define ENGINE_CASE(name) TEMPLATE_TEST_CASE(name, "", MemoryRig, EtcdRig)

ENGINE_CASE("a missing key has revision 0, and is created once") {
  TestType rig;
  const auto none = rig.loop.wait(rig.one.read(kKey));
  PSD_REQUIRE_OK(none);
  CHECK(*none == Stored{});
  const auto made = rig.loop.wait(rig.one.swap(kKey, 0, "first"));
  PSD_REQUIRE_OK(made);
  CHECK(made->won);
  CHECK(made->now.text == "first");
  CHECK(made->now.revision > 0);
  const auto late = rig.loop.wait(rig.other.swap(kKey, 0, "second"));
  PSD_REQUIRE_OK(late);
  CHECK_FALSE(late->won);
  CHECK(late->now == made->now);
  const auto there = rig.loop.wait(rig.other.read(kKey));
  PSD_REQUIRE_OK(there);
  CHECK(*there == made->now);
}

ENGINE_CASE("of swaps from one revision one succeeds, and the others see the current value") {
  TestType rig;
  const auto first = rig.loop.wait(rig.one.swap(kKey, 0, "1"));
  PSD_REQUIRE_OK(first);
  const auto won = rig.loop.wait(rig.other.swap(kKey, first->now.revision, "2"));
  PSD_REQUIRE_OK(won);
  REQUIRE(won->won);
  CHECK(won->now.revision > first->now.revision);
  for (const uint64_t stale : {first->now.revision, uint64_t{0}, won->now.revision + 1}) {
    const auto refused = rig.loop.wait(rig.one.swap(kKey, stale, "3"));
    PSD_REQUIRE_OK(refused);
    CHECK_FALSE(refused->won);
    CHECK(refused->now == won->now);
  }
}

ENGINE_CASE("a swap that is repeated, as after a lost answer, succeeds once") {
  TestType rig;
  const auto first = rig.loop.wait(rig.one.swap(kKey, 0, "proposal 1"));
  PSD_REQUIRE_OK(first);
  const auto again = rig.loop.wait(rig.one.swap(kKey, 0, "proposal 1"));
  PSD_REQUIRE_OK(again);
  CHECK(again->won);
  CHECK(again->now == first->now);
}

/// Counts up by swaps until `count` of them succeeded.
kj::Promise<uint64_t> countUp(Engine& engine, std::string name, uint64_t count, uint64_t conflicts,
                              Stored now) {
  if (count == 0) return conflicts;
  const uint64_t value = now.revision == 0 ? 0 : std::stoull(now.text);
  auto swapped =
      engine.swap(kKey, now.revision, std::to_string(value + 1) + " " + name + std::to_string(count));
  return swapped.then([&engine, name, count, conflicts](Result<Swapped> swapped) {
    if (!swapped.ok()) throw std::runtime_error(swapped.message());
    return countUp(engine, name, swapped->won ? count - 1 : count, conflicts + !swapped->won, swapped->now);
  });
}

ENGINE_CASE("two clients that count by swaps lose no count") {
  constexpr uint64_t kEach = 50;
  TestType rig;
  auto one = countUp(rig.one, "one", kEach, 0, {}), other = countUp(rig.other, "other", kEach, 0, {});
  auto joined = kj::joinPromises(kj::arr(kj::mv(one), kj::mv(other)));
  const auto conflicts = rig.loop.wait(kj::mv(joined));
  const auto last = rig.loop.wait(rig.one.read(kKey));
  PSD_REQUIRE_OK(last);
  CHECK(std::stoull(last->text) == 2 * kEach);
  CHECK(conflicts[0] + conflicts[1] > 0);
}

ENGINE_CASE("values are any bytes, up to the maximum") {
  TestType rig;
  std::string all;
  for (int byte = 0; byte < 256; byte++) all += static_cast<char>(byte);
  Stored now;
  for (const std::string& text :
       {std::string(), all, std::string("{\"a\": \"\\u00e4\"}\n"), std::string(kEngineTextBytesMax, 'x')}) {
    const auto swapped = rig.loop.wait(rig.one.swap(kKey, now.revision, text));
    PSD_REQUIRE_OK(swapped);
    REQUIRE(swapped->won);
    const auto there = rig.loop.wait(rig.other.read(kKey));
    PSD_REQUIRE_OK(there);
    CHECK(there->text == text);
    CHECK(there->revision == swapped->now.revision);
    now = *there;
  }
  const auto refused =
      rig.loop.wait(rig.one.swap(kKey, now.revision, std::string(kEngineTextBytesMax + 1, 'x')));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(rig.loop.wait(rig.one.read(kKey)).value() == now);
}

ENGINE_CASE("a caller that waits for a change receives it, and no others") {
  TestType rig;
  auto made = rig.other.changed(kKey, 0);
  CHECK_FALSE(rig.loop.resolvedWithin(50, made));
  const auto first = rig.loop.wait(rig.one.swap(kKey, 0, "1"));
  PSD_REQUIRE_OK(first);
  CHECK(rig.loop.wait(kj::mv(made)).value() == first->now);
  CHECK(rig.loop.wait(rig.other.changed(kKey, 0)).value() == first->now);

  auto next = rig.other.changed(kKey, first->now.revision);
  auto dropped = kj::heap(rig.other.changed(kKey, first->now.revision));
  PSD_REQUIRE_OK(rig.loop.wait(rig.one.swap(kKey + "2", 0, "another key")));
  CHECK_FALSE(rig.loop.resolvedWithin(50, next));
  dropped = nullptr;
  const auto second = rig.loop.wait(rig.one.swap(kKey, first->now.revision, "2"));
  PSD_REQUIRE_OK(second);
  CHECK(rig.loop.wait(kj::mv(next)).value() == second->now);
}

ENGINE_CASE("a caller that waits for a change receives another revision even if it is lower") {
  TestType rig;
  const auto first = rig.loop.wait(rig.one.swap(kKey, 0, "1"));
  PSD_REQUIRE_OK(first);
  CHECK(rig.loop.wait(rig.other.changed(kKey, first->now.revision + 5)).value() == first->now);
  CHECK(rig.loop.wait(rig.other.changed(kKey + "2", 7)).value() == Stored{});
}

TEST_CASE("the engine in memory loses and delays calls on request") {
  MemoryRig rig;
  rig.one.loseRequests(1);
  CHECK_FALSE(rig.loop.wait(rig.one.swap(kKey, 0, "lost")).ok());
  CHECK(rig.loop.wait(rig.one.read(kKey)).value().revision == 0);
  rig.one.loseAnswers(1);
  CHECK_FALSE(rig.loop.wait(rig.one.swap(kKey, 0, "done")).ok());
  const Stored done = rig.loop.wait(rig.one.read(kKey)).value();
  CHECK(done.text == "done");

  rig.one.delayRequests(2);
  CHECK_FALSE(rig.loop.wait(rig.one.swap(kKey, done.revision, "late")).ok());
  CHECK_FALSE(rig.loop.wait(rig.one.swap(kKey, done.revision, "later")).ok());
  CHECK(rig.loop.wait(rig.one.read(kKey)).value() == done);
  rig.one.deliverLate();
  CHECK(rig.loop.wait(rig.one.read(kKey)).value().text == "late");

  rig.one.holdAnswers();
  auto held = rig.one.read(kKey);
  CHECK_FALSE(rig.loop.resolvedWithin(1, held));
  rig.one.releaseAnswers();
  CHECK(rig.loop.wait(kj::mv(held)).ok());

  const Stored late = rig.loop.wait(rig.one.read(kKey)).value();
  rig.one.setAway(true);
  CHECK_FALSE(rig.loop.wait(rig.one.read(kKey)).ok());
  auto changed = rig.one.changed(kKey, late.revision);
  CHECK(rig.loop.wait(rig.other.swap(kKey, late.revision, "other")).value().won);
  CHECK_FALSE(rig.loop.resolvedWithin(1, changed));
  rig.one.setAway(false);
  CHECK(rig.loop.wait(kj::mv(changed)).value().text == "other");
  CHECK(rig.one.swaps() == 4);
}

}  // namespace
}  // namespace psd::engine_contract_test

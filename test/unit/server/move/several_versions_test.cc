// Published versions that move from one number of daemons to another.

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "common/plan/model_partitions.h"
#include "common/safetensors/combined_version.h"
#include "server/move/moved_versions.h"
#include "server/publish/version_store.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/unit/server/publish/small_versions.h"

namespace psd::several_versions_test {
namespace {

using namespace testing;
using small_versions::borrowed;
using small_versions::kFolder;
using small_versions::numbersOf;
using std::chrono::seconds;

std::shared_ptr<VersionStore> opened(Env& env) {
  auto store = VersionStore::open({.env = borrowed(env), .folder = kFolder},
                                  {.keep = 3, .bytes = 1 << 20, .leases = 16});
  PSD_REQUIRE_OK(store);
  return *std::move(store);
}

/// The stores of the daemons that serve a model, which moves from one number of them to another.
struct Daemons {
  static constexpr uint64_t kSeed = 0xfeed;
  inline static const ModelSpec kWhole{"m", {{"a", DType::f32, {64, 16}}, {"b", DType::bf16, {48, 32}}}, {}};

  explicit Daemons(uint32_t count) : partitions(partitionModel(kWhole, count).value()), disks(count) {
    for (MemoryEnv& disk : disks) stores.push_back(opened(disk));
  }
  Partition partition(uint32_t index) const { return {index, static_cast<uint32_t>(stores.size())}; }
  void restart(uint32_t index) {
    stores[index] = nullptr;
    disks[index].restartProcess();
    stores[index] = opened(disks[index]);
  }
  /// Publishes a part with these bytes; a single daemon gives the number itself.
  Result<VersionInfo> publish(uint32_t index, uint64_t round, uint8_t fill) {
    const auto tensors = safetensorsEntries(partitions[index].spec);
    const std::vector<std::byte> values(tensors.back().end, std::byte{fill});
    VersionInfo info{.step = fill, .created = "2026-11-29T00:00:00Z", .moment = VersionMoment::round};
    if (stores.size() > 1) {
      info.number = round;
      info.part = index;
      info.parts = static_cast<uint32_t>(stores.size());
      info.momentId = round * 7;
    }
    return stores[index]->publish(info, {tensors, values});
  }
  void publishAll(uint64_t round, uint8_t fill) {
    for (uint32_t i = 0; i < stores.size(); i++) PSD_REQUIRE_OK(publish(i, round, fill));
  }
  std::vector<VersionInfo> versions() const {
    if (stores.size() == 1) return stores.front()->versions();
    std::vector<std::vector<VersionInfo>> lists;
    for (const auto& store : stores) lists.push_back(store->versions());
    return commonVersions(lists);
  }
  /// The files of a version.
  std::vector<std::vector<std::byte>> files(uint64_t number) const {
    std::vector<std::vector<std::byte>> files;
    for (const auto& store : stores) {
      const auto info = store->find(number);
      PSD_REQUIRE_OK(info);
      const auto bytes = store->read(number, 0, info->bytes);
      PSD_REQUIRE_OK(bytes);
      files.emplace_back(bytes->begin(), bytes->begin() + static_cast<ptrdiff_t>(info->bytes));
    }
    return files;
  }
  /// The file of a whole version, as readers have it.
  std::vector<std::byte> bytes(uint64_t number) const {
    const auto made = MovedVersion::make(files(number), {kWhole}, kSeed);
    PSD_REQUIRE_OK(made);
    const MovedVersion::File file = (*made)->at(0);
    return {file.values.begin(), file.values.end()};
  }
  std::vector<ModelSpec> specs() const {
    std::vector<ModelSpec> specs;
    for (const ModelPartition& each : partitions) specs.push_back(each.spec);
    return specs;
  }
  /// All but the commit. `rounds`: that the sources have made.
  Status moveTo(Daemons& to, uint64_t rounds, uint64_t seed = kSeed) const {
    for (uint32_t j = 0; j < to.stores.size(); j++) {
      PSD_RETURN_IF_ERROR(to.stores[j]->beginArrival(to.partition(j)));
    }
    std::vector<uint64_t> numbers;
    for (const VersionInfo& version : versions()) {
      PSD_ASSIGN_OR_RETURN(const auto moved, MovedVersion::make(files(version.number), to.specs(), seed));
      for (size_t j = 0; j < to.stores.size(); j++) {
        const MovedVersion::File part = moved->at(j);
        const auto head = std::as_bytes(std::span(part.head));
        std::vector<std::byte> file(head.begin(), head.end());
        file.insert(file.end(), part.values.begin(), part.values.end());
        PSD_RETURN_IF_ERROR(to.stores[j]->arrive(file, 0));
      }
      numbers.push_back(version.number);
    }
    std::vector<VersionsContinuation> sources;
    for (const auto& store : stores) {
      sources.push_back(store->continuation());
      sources.back().rounds = rounds;
    }
    for (uint32_t j = 0; j < to.stores.size(); j++) {
      PSD_RETURN_IF_ERROR(to.stores[j]->endArrival(continuationAt(to.partition(j), sources, numbers, seed)));
    }
    return {};
  }
  void show() {
    for (const auto& store : stores) store->show();
  }

  std::vector<ModelPartition> partitions;
  std::deque<MemoryEnv> disks;
  std::vector<std::shared_ptr<VersionStore>> stores;
};

void checkSame(const Daemons& before, const Daemons& after) {
  const std::vector<VersionInfo> old = before.versions(), now = after.versions();
  REQUIRE(now.size() == old.size());
  for (size_t i = 0; i < old.size(); i++) {
    CHECK((now[i].number == old[i].number && now[i].history == old[i].history && now[i].step == old[i].step));
    CHECK((now[i].created == old[i].created && now[i].moment == old[i].moment));
    CHECK(after.bytes(now[i].number) == before.bytes(old[i].number));
  }
}

TEST_CASE("Version store: moved versions are the same at any number of daemons, and continue") {
  Daemons one(1);
  for (uint8_t fill = 1; fill <= 3; fill++) one.publishAll(0, fill);
  const uint64_t history = one.stores[0]->history();
  Daemons two(2), three(3), again(1);
  PSD_REQUIRE_OK(one.moveTo(two, 3));
  checkSame(one, two);
  two.show();
  two.restart(1);
  two.publishAll(4, 4);
  CHECK(two.versions().back().history == history);
  two.restart(0);
  two.publishAll(5, 5);
  CHECK(two.versions().back().number == 5);
  CHECK(two.versions().back().history == history);

  PSD_REQUIRE_OK(two.moveTo(three, 5, 8));
  checkSame(two, three);
  three.show();
  three.publishAll(6, 6);
  CHECK(three.versions().back().history == history);

  PSD_REQUIRE_OK(three.moveTo(again, 6, 9));
  checkSame(three, again);
  again.show();
  const auto next = again.publish(0, 0, 7);
  PSD_REQUIRE_OK(next);
  CHECK((next->number == 7 && next->history == history));
}

TEST_CASE("Version store: versions of several daemons that were never moved keep their history") {
  Daemons two(2), one(1);
  for (uint8_t round = 1; round <= 3; round++) two.publishAll(round, round);
  const uint64_t history = two.versions().back().history;
  PSD_REQUIRE_OK(two.moveTo(one, 3));
  checkSame(two, one);
  one.show();
  CHECK(one.publish(0, 0, 4)->history == history);
}

TEST_CASE("Version store: a daemon that loses versions ends the whole history, and its part's") {
  Daemons one(1), two(2);
  for (uint8_t fill = 1; fill <= 3; fill++) one.publishAll(0, fill);
  const uint64_t history = one.stores[0]->history();
  PSD_REQUIRE_OK(one.moveTo(two, 3));
  two.show();
  SECTION("its newest version is gone") {
    two.publishAll(4, 4);
    PSD_REQUIRE_OK(two.disks[1].remove(versionPath(kFolder, 4)));
    two.restart(1);
    two.publishAll(5, 5);
  }
  SECTION("a round is made again, of other values") {
    two.publishAll(4, 4);
    PSD_REQUIRE_OK(two.publish(1, 4, 9));
    two.publishAll(5, 5);
  }
  REQUIRE(two.versions().back().number == 5);
  CHECK(two.versions().back().history != history);
  CHECK(two.versions().front().history == history);
  Daemons three(3);
  const uint64_t now = two.versions().back().history;
  PSD_REQUIRE_OK(two.moveTo(three, 5, 8));
  checkSame(two, three);
  three.show();
  three.publishAll(6, 6);
  CHECK(three.versions().back().history == now);
}

TEST_CASE("Version store: numbers above those of the rounds rise at several daemons") {
  Daemons one(1), two(2);
  for (uint8_t fill = 1; fill <= 9; fill++) one.publishAll(0, fill);  // psd publish, three times each round
  const uint64_t history = one.stores[0]->history();
  PSD_REQUIRE_OK(one.moveTo(two, 3));
  two.show();
  two.publishAll(4, 4);
  two.restart(0);
  two.publishAll(5, 5);
  CHECK(two.versions().back().number == 11);
  CHECK(two.versions().back().history == history);
  PSD_REQUIRE_OK(two.publish(0, 5, 5));  // made again after a crash
  CHECK(two.versions().back().number == 11);
  Daemons three(3);
  PSD_REQUIRE_OK(two.moveTo(three, 5, 8));
  three.show();
  three.publishAll(6, 6);
  CHECK(three.versions().back().number == 12);
  CHECK(three.versions().back().history == history);
}

TEST_CASE("Version store: a round from before a move is in no version, and ends no history") {
  Daemons one(1), two(2);
  for (uint8_t fill = 1; fill <= 3; fill++) one.publishAll(0, fill);
  PSD_REQUIRE_OK(one.moveTo(two, 3));
  two.show();
  two.restart(0);
  for (uint32_t i = 0; i < 2; i++) {
    const auto made = two.publish(i, 3, 9);  // a gradient of a trainer that pulled before others
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().code == ErrorCode::notReady);
  }
  checkSame(one, two);
  two.publishAll(4, 4);
  CHECK(two.versions().back().history == one.stores[0]->history());
}

TEST_CASE("Version store: aborted moves to several daemons leave nothing") {
  Daemons one(1), two(2);
  for (uint8_t fill = 1; fill <= 3; fill++) one.publishAll(0, fill);
  PSD_REQUIRE_OK(one.moveTo(two, 3));
  PSD_REQUIRE_OK(two.stores[0]->cancelArrival());
  PSD_REQUIRE_OK(two.stores[1]->cancelArrival());
  two.restart(1);
  CHECK(two.versions().empty());
  two.publishAll(1, 1);
  CHECK(two.versions().back().history != one.stores[0]->history());
}

TEST_CASE("Version store: leases move to several daemons") {
  Daemons one(1), two(2);
  for (uint8_t fill = 1; fill <= 3; fill++) one.publishAll(0, fill);
  PSD_REQUIRE_OK(one.stores[0]->lease(7, 1, seconds(60), "reader"));
  PSD_REQUIRE_OK(one.moveTo(two, 3));
  two.show();
  for (uint8_t round = 4; round < 9; round++) two.publishAll(round, round);
  for (const auto& store : two.stores) {
    CHECK(numbersOf(*store) == std::vector<uint64_t>{1, 6, 7, 8});
    PSD_REQUIRE_OK(store->lease(7, 1, seconds(60), "reader"));
  }
}

TEST_CASE("Version store: a version for another number of daemons does not arrive") {
  Daemons one(1), two(2);
  one.publishAll(0, 1);
  PSD_REQUIRE_OK(two.stores[1]->beginArrival(two.partition(1)));
  CHECK(two.stores[1]->arrive(one.files(1).front(), 0).message() ==
        "version 1 is of the whole model, and this daemon has partition 1 of 2: use the psd move of this "
        "daemon's psd");
  VersionsContinuation wrong = one.stores[0]->continuation();  // without a history of the whole
  wrong.numbers.clear();
  CHECK(two.stores[1]->endArrival(wrong).message() == "the versions cannot continue with such numbers");
}

}  // namespace
}  // namespace psd::several_versions_test

// Readers of versions at daemons that lose, replace and move them.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum/crc32c.h"
#include "common/plan/model_partitions.h"
#include "common/safetensors/combined_version.h"
#include "test/support/catch.h"
#include "test/support/fake_versions.h"
#include "test/support/holds_soon.h"
#include "trainer/client/api/version_reader.h"

namespace psd::client_version_readers_test {
namespace {

using namespace testing;
using std::chrono::seconds;
using Served = FakeVersions::Served;

constexpr uint64_t kHistory = 0xabc, kSeed = 0xfeed;
const ModelSpec kModel{"m", {{"a", DType::f32, {64, 16}}, {"b", DType::f32, {48, 32}}}, {}};

VersionInfo infoOf(uint64_t number, uint64_t history = kHistory) {
  return {.number = number,
          .history = history,
          .step = number,
          .created = "2026-11-29T12:00:00Z",
          .moment = VersionMoment::round};
}

/// The file of a version, each of whose bytes is its number.
std::vector<std::byte> fileOf(uint64_t number, uint64_t history = kHistory) {
  const auto tensors = safetensorsEntries(kModel);
  const std::vector<std::byte> values(tensors.back().end, static_cast<std::byte>(number));
  std::vector<uint32_t> checksums;
  SafetensorsHead head;
  for (const SafetensorsEntry& tensor : tensors) {
    checksums.push_back(crc32c(std::span(values).subspan(tensor.begin, tensor.end - tensor.begin)));
  }
  head.addMetadata(versionMetadata(infoOf(number, history), checksums));
  for (const SafetensorsEntry& tensor : tensors) head.add(tensor);
  const std::string text = head.text();
  std::vector<std::byte> file(text.size() + values.size());
  std::memcpy(file.data(), text.data(), text.size());
  std::ranges::copy(values, file.begin() + static_cast<ptrdiff_t>(text.size()));
  return file;
}

ClientOptions optionsOf(const std::string& server) {
  ClientOptions options;
  options.servers = {server};
  options.retryTimeout = seconds(60);
  return options;
}

std::unique_ptr<VersionReader> readerOf(const ClientOptions& options) {
  auto reader = VersionReader::connect(options);
  PSD_REQUIRE_OK(reader);
  return *std::move(reader);
}

/// Two daemons that serve a model.
struct Pair {
  Pair() {
    const DaemonAddresses all{{daemons[0].address()}, {daemons[1].address()}};
    for (uint32_t i = 0; i < 2; i++) {
      daemons[i].change([&](Served& served) {
        served.daemons = all;
        served.index = i;
      });
    }
  }
  DaemonAddresses addresses() { return {{daemons[0].address()}, {daemons[1].address()}}; }
  /// Gives both their parts of a version. `seed`: of the histories of the parts.
  void add(uint64_t number, uint64_t history = kHistory, uint64_t seed = kSeed) {
    std::vector<ModelSpec> partitions;
    const auto cut = partitionModel(kModel, 2);
    PSD_REQUIRE_OK(cut);
    for (const ModelPartition& each : *cut) partitions.push_back(each.spec);
    const std::vector<std::byte> file = fileOf(number, history);
    const auto split = SplitVersion::split(file, partitions, seed);
    PSD_REQUIRE_OK(split);
    for (size_t i = 0; i < 2; i++) {
      const SplitVersion::Part& part = split->parts()[i];
      const auto head = std::as_bytes(std::span(part.head));
      std::vector<std::byte> bytes(head.begin(), head.end());
      bytes.insert(bytes.end(), part.values.begin(), part.values.end());
      const auto header = verifyVersion(bytes);
      PSD_REQUIRE_OK(header);
      daemons[i].change([&](Served& served) { served.add(header->info, bytes); });
    }
  }
  void remove(uint64_t number) {
    for (FakeVersions& daemon : daemons) {
      daemon.change([number](Served& served) { served.versions.erase(number); });
    }
  }
  void moveTo(const DaemonAddresses& to) {
    for (FakeVersions& daemon : daemons) daemon.moveTo(to);
  }

  FakeVersions daemons[2];
};

/// A pair that has version 1, a reader of it, and the daemon to which the model can move.
struct Moving {
  Moving() {
    pair.add(1);
    single.change([](Served& served) { served.add(infoOf(1), fileOf(1)); });
    reader = readerOf(optionsOf(pair.daemons[0].address()));
  }
  std::map<uint64_t, uint64_t> leasesThere() {
    return single.change([](Served& served) { return served.leases; });
  }
  DaemonAddresses there() { return {{single.address()}}; }

  Pair pair;
  FakeVersions single;
  std::unique_ptr<VersionReader> reader;
};

}  // namespace

TEST_CASE("a wait without a timeout ends with the error of a daemon that says that its time is over") {
  FakeVersions single;
  single.change([](Served& served) {
    served.publishedError = Error{ErrorCode::deadlineExceeded, "it says so"};
  });
  const auto waited = readerOf(optionsOf(single.address()))->waitFor(1, std::nullopt);
  REQUIRE_FALSE(waited.ok());
  CHECK(waited.error().code == ErrorCode::deadlineExceeded);
  CHECK(waited.message().find("it says so") != std::string::npos);
}

TEST_CASE("a pin of several daemons fails once if another history has begun") {
  Pair pair;
  pair.add(1);
  const auto reader = readerOf(optionsOf(pair.daemons[0].address()));
  CHECK(reader->waitFor(1, seconds(60)).value().history == kHistory);
  pair.add(1, kHistory + 1);
  const auto pinned = reader->pin(1, seconds(60));
  REQUIRE_FALSE(pinned.ok());
  CHECK(pinned.error().code == ErrorCode::modelMismatch);
  const auto again = reader->pin(1, seconds(60));
  PSD_REQUIRE_OK(again);
  CHECK(reader->unpin(*again).ok());
}

TEST_CASE("the newest version of several daemons is never older than one that was returned before") {
  Pair pair;
  pair.add(1);
  pair.add(2);
  const auto reader = readerOf(optionsOf(pair.daemons[0].address()));
  CHECK(reader->waitFor(1, seconds(60)).value().number == 2);
  pair.remove(2);
  const auto lists = [&] { return pair.daemons[1].change([](Served& served) { return served.lists; }); };
  const size_t before = lists();
  auto fetch = std::async(std::launch::async, [&] { return reader->fetch(0); });
  const bool looksAgain = holdsSoon([&] { return lists() >= before + 3; });
  pair.add(2);
  const auto fetched = fetch.get();
  CHECK(looksAgain);
  PSD_REQUIRE_OK(fetched);
  CHECK(fetched->info.number == 2);
}

TEST_CASE("a part that is replaced while it is read is not called damaged") {
  Pair pair;
  pair.add(1);
  FakeVersions& second = pair.daemons[1];
  second.change([](Served& served) { served.readsWait = [] { return true; }; });
  const auto reader = readerOf(optionsOf(pair.daemons[0].address()));
  auto fetch = std::async(std::launch::async, [&] { return reader->fetch(1); });
  const bool reads =
      holdsSoon([&] { return second.change([](Served& served) { return served.reading; }) > 0; });
  pair.add(1, kHistory, kSeed + 1);
  second.change([](Served& served) { served.readsWait = nullptr; });
  second.disconnect();
  const auto fetched = fetch.get();
  CHECK(reads);
  REQUIRE_FALSE(fetched.ok());
  CHECK(fetched.error().code == ErrorCode::modelMismatch);
  CHECK(fetched.message().find("version 1 was replaced while it was read") != std::string::npos);
}

TEST_CASE("a move takes the leases of pins along, and not those of reads in progress") {
  Moving world;
  const auto pin = world.reader->pin(1, seconds(60));
  PSD_REQUIRE_OK(pin);
  FakeVersions& first = world.pair.daemons[0];
  first.change([](Served& served) { served.readsWait = [] { return true; }; });
  auto fetch = std::async(std::launch::async, [&] { return world.reader->fetch(1); });
  const bool reads =
      holdsSoon([&] { return first.change([](Served& served) { return served.reading; }) > 0; });
  world.pair.daemons[1].moveTo(world.there());
  const auto waited = world.reader->waitFor(1, seconds(60));
  const bool kept = holdsSoon([&] { return world.leasesThere().contains(*pin); });
  const auto leases = world.leasesThere();
  first.moveTo(world.there());
  const auto fetched = fetch.get();
  CHECK(reads);
  CHECK(waited.ok());
  CHECK(kept);
  CHECK(leases.size() == 1);
  PSD_REQUIRE_OK(fetched);
  CHECK(fetched->info.number == 1);
  CHECK(world.reader->unpin(*pin).ok());
  CHECK(world.leasesThere().empty());
}

TEST_CASE("a pin that the daemon cannot take at once after a move is kept as soon as it can") {
  Moving world;
  const auto pin = world.reader->pin(1, seconds(60));
  PSD_REQUIRE_OK(pin);
  world.single.change([](Served& served) { served.leaseError = Error{ErrorCode::overloaded, "too many"}; });
  world.pair.moveTo(world.there());
  PSD_REQUIRE_OK(world.reader->waitFor(1, seconds(60)));
  CHECK(holdsSoon([&] { return world.single.change([](Served& served) { return served.leasing; }) > 0; }));
  world.single.change([](Served& served) { served.leaseError.reset(); });
  CHECK(holdsSoon([&] { return world.leasesThere().contains(*pin); }));
  CHECK(world.reader->unpin(*pin).ok());
  CHECK(world.leasesThere().empty());
}

TEST_CASE("a pin that is lost in a move is reported as lost") {
  Moving world;
  const auto pin = world.reader->pin(1, seconds(60));
  PSD_REQUIRE_OK(pin);
  world.single.change([](Served& served) {
    served.versions.clear();
    served.add(infoOf(2), fileOf(2));
  });
  world.pair.moveTo(world.there());
  PSD_REQUIRE_OK(world.reader->waitFor(1, seconds(60)));
  const Status ended = world.reader->unpin(*pin);
  REQUIRE_FALSE(ended.ok());
  CHECK(ended.error().code == ErrorCode::notReady);
}

TEST_CASE("a callback that says where reads continue may make calls, also when the model has moved on") {
  Pair pair;
  pair.add(1);
  Pair next;
  next.add(1);
  FakeVersions single;
  single.change([](Served& served) { served.add(infoOf(1), fileOf(1)); });
  VersionReader* calls = nullptr;
  std::vector<size_t> listed;
  ClientOptions options = optionsOf(pair.daemons[0].address());
  options.onEvent = [&](const ClientEvent& event) {
    if (calls == nullptr || event.line.find("where the model has moved") == std::string::npos) return;
    VersionReader& reader = *std::exchange(calls, nullptr);
    next.moveTo({{single.address()}});
    listed.push_back(reader.versions().value().size());
  };
  const auto reader = readerOf(options);
  calls = reader.get();
  pair.moveTo(next.addresses());
  PSD_REQUIRE_OK(reader->waitFor(1, seconds(60)));
  CHECK(listed == std::vector<size_t>{1});
  CHECK(reader->server() == single.address());
}

}  // namespace psd::client_version_readers_test

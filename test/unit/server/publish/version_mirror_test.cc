#include "server/publish/version_mirror.h"

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "server/checkpoint/log_format.h"
#include "server/publish/version_store.h"
#include "server/replica/memory_files.h"
#include "server/replica/standby_files.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"

namespace psd::version_mirror_test {
namespace {

using namespace testing;
using Files = std::map<std::string, std::vector<std::byte>>;

constexpr uint64_t kElements = 600'000;  // several pieces
const std::string kFolder = "/versions";

ModelSpec model() { return {"m", {{"a", DType::f32, {kElements}}}, {}}; }

/// Publishes a version whose bytes are all `fill`.
Status publish(VersionStore& store, uint8_t fill) {
  const std::vector<std::byte> values(kElements * sizeof(float), std::byte{fill});
  const VersionInfo info{.step = fill, .created = "2026-11-29T00:00:00Z", .moment = VersionMoment::round};
  return store.publish(info, {safetensorsEntries(model()), values}).status();
}

Files filesIn(Env& env, const std::string& folder) {
  Files out;
  const auto names = env.list(folder);
  for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
    auto file = env.open(folder + "/" + name);
    if (!file.ok()) continue;
    std::vector<std::byte> bytes((*file)->size());
    if ((*file)->read(0, bytes).ok()) out[name] = std::move(bytes);
  }
  return out;
}

/// A standby: gets an image of the store's files, then applies what the log sends.
class Standby {
 public:
  Standby(Replicator& log, const VersionStore& store) : log_(log), stream_(log.open()) {
    MemoryFiles image;
    log_.append(Departed());  // as a primary does, so that it hears what the image has
    fault_ = store.copyTo(image, "versions");
    auto files = StandbyFiles::make(own_, kFolder, image, "versions");
    if (files.ok()) files_ = *std::move(files);
    if (fault_.ok()) fault_ = files.status();
  }
  ~Standby() { log_.close(stream_); }

  /// Applies what has arrived; false once the stream has ended.
  bool apply(TestLoop& loop) {
    auto filled = log_.whenFilled(stream_);
    if (!loop.resolved(filled)) return true;
    auto batch = log_.take(stream_, {});
    if (!batch) return false;
    for (const PendingRecords::Piece& piece : batch->records.pieces()) {
      if (!piece.inPlace.empty()) throw std::runtime_error("versions have no gradients");
      apply(piece.bytes);
    }
    log_.held(stream_, batch->next, batch->bytes);
    return true;
  }
  const Status& fault() const { return fault_; }
  Files files() { return filesIn(*own_, kFolder); }

 private:
  void apply(std::span<const std::byte> left) {
    while (!left.empty()) {
      const uint64_t bytes = *recordBytes(left.first<kRecordPrefixBytes>());
      auto record = parseRecord({left.begin(), left.begin() + static_cast<ptrdiff_t>(bytes)});
      if (!record.ok() || !*record) throw std::runtime_error("not a record");
      if (fault_.ok() && (*record)->file) fault_ = files_->apply(*(*record)->file);
      left = left.subspan(bytes);
    }
  }

  Replicator& log_;
  const Replicator::Stream stream_;
  const std::shared_ptr<Env> own_ = std::make_shared<MemoryFiles>();
  std::unique_ptr<StandbyFiles> files_;
  Status fault_;
};

TEST_CASE("Version mirror: a standby that begins at any moment has the files of its primary") {
  const auto log = std::make_shared<Replicator>(4 << 20);
  const auto env = std::make_shared<MemoryFiles>();
  const auto store =
      VersionStore::open({.env = env, .folder = kFolder, .mirror = std::make_shared<VersionMirror>(log)},
                         {.keep = 3, .bytes = 1ull << 30, .leases = 4});
  PSD_REQUIRE_OK(store);
  log->waitForStandby(true);
  std::atomic<bool> done = false;
  std::string fault;
  std::thread publisher([&] {
    for (uint8_t fill = 1; fill <= 60 && fault.empty(); fill++) {
      if (const Status published = publish(**store, fill); !published.ok()) fault = published.message();
    }
    done = true;
  });
  TestLoop loop;
  std::optional<Standby> standby;
  bool follows = true;
  uint64_t from = 0;  // number of the first record after the standby began
  while (!done && follows) {
    if (!standby || log->next() > from + 5) {
      standby.emplace(*log, **store);
      from = log->next();
    }
    follows = standby->apply(loop) && standby->fault().ok();
    std::this_thread::yield();
  }
  if (!follows) (*store)->endMirror();
  publisher.join();
  CHECK(fault.empty());
  PSD_REQUIRE_OK(standby->fault());
  REQUIRE(standby->apply(loop));
  PSD_REQUIRE_OK(standby->fault());
  CHECK(standby->files() == filesIn(*env, kFolder));
  CHECK(standby->files().size() == 4);  // three versions and their index
}

TEST_CASE("Version mirror: a version is announced once the standby has it") {
  TestLoop loop;
  const auto log = std::make_shared<Replicator>();
  const auto env = std::make_shared<MemoryFiles>();
  const auto store =
      VersionStore::open({.env = env, .folder = kFolder, .mirror = std::make_shared<VersionMirror>(log)},
                         {.keep = 3, .bytes = 1ull << 30, .leases = 4});
  PSD_REQUIRE_OK(store);
  Standby standby(*log, **store);
  log->waitForStandby(true);
  auto announced = (*store)->whenPublished(1);
  Status outcome;
  std::thread publisher([&] { outcome = publish(**store, 1); });
  SECTION("it gets it") {
    CHECK(loop.until([&] { return filesIn(*env, kFolder).size() == 2; }));  // version and index
    CHECK_FALSE(loop.resolved(announced));
    CHECK(loop.until([&] { return standby.apply(loop) && loop.resolved(announced); }));
    publisher.join();
    PSD_REQUIRE_OK(outcome);
    CHECK(standby.files() == filesIn(*env, kFolder));
  }
  SECTION("the daemon ends") {
    CHECK(loop.until([&] { return filesIn(*env, kFolder).size() == 2; }));
    (*store)->endMirror();
    publisher.join();
    CHECK(outcome.error().code == ErrorCode::shuttingDown);
    CHECK_FALSE(loop.resolved(announced));
  }
}

TEST_CASE("Version mirror: changes that a standby cannot repeat") {
  const auto env = std::make_shared<MemoryFiles>();
  MemoryFiles image;
  auto files = StandbyFiles::make(env, kFolder, image, "versions");
  PSD_REQUIRE_OK(files);
  const std::string bytes = "bytes";
  const auto append = [&](const std::string& name, uint64_t offset) {
    return (*files)->apply({FileChange::Kind::append, name, offset, std::as_bytes(std::span(bytes))});
  };
  const auto commit = [&](const std::string& name, uint64_t size) {
    return (*files)->apply({FileChange::Kind::commit, name, size, {}});
  };
  for (const std::string& name :
       std::vector<std::string>{"", "a/b", "../a", ".", std::string(300, 'a'), std::string("a\0b", 3)}) {
    CHECK(append(name, 0).error().code == ErrorCode::invalidArgument);
    CHECK((*files)->apply({FileChange::Kind::remove, name, 0, {}}).error().code ==
          ErrorCode::invalidArgument);
  }
  PSD_REQUIRE_OK(append("a", 5));  // began before the image
  CHECK(commit("a", 10).message() == "the primary's file 'a' has arrived without its beginning");
  PSD_REQUIRE_OK(append("a", 0));
  CHECK(commit("a", 10).message() == "the primary's file 'a' has 10 bytes, of which 5 have arrived");
  CHECK(filesIn(*env, kFolder).size() == 1);
  PSD_REQUIRE_OK(append("a", 5));
  PSD_REQUIRE_OK(append("b", 0));  // another file, at the same time
  PSD_REQUIRE_OK(commit("a", 10));
  PSD_REQUIRE_OK(commit("b", 5));
  PSD_REQUIRE_OK((*files)->apply({FileChange::Kind::remove, "b", 0, {}}));
  PSD_REQUIRE_OK(commit("a", 10));
  CHECK(filesIn(*env, kFolder).at("a").size() == 10);
  PSD_REQUIRE_OK((*files)->apply({FileChange::Kind::remove, "a", 0, {}}));
  PSD_REQUIRE_OK((*files)->apply({FileChange::Kind::remove, "a", 0, {}}));
  CHECK(filesIn(*env, kFolder).empty());
}

}  // namespace
}  // namespace psd::version_mirror_test

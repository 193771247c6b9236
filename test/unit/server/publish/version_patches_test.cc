#include "server/publish/version_patches.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>

#include <fmt/format.h>

#include "common/patch/version_patch.h"
#include "server/publish/version_store.h"
#include "server/replica/memory_files.h"
#include "test/support/catch.h"

namespace psd::version_patches_test {
namespace {

using namespace testing;
using Bytes = std::vector<std::byte>;

constexpr uint64_t kElements = 20'000;
const std::string kFolder = "/versions";

/// A store of versions of one tensor, of which some elements change from one version to the next.
class Versions {
 public:
  explicit Versions(std::shared_ptr<Env> env, uint64_t keep = 4) : env_(std::move(env)), keep_(keep) {
    open();
  }

  void open(bool hasAll = true) {
    auto opened = VersionStore::open({.env = env_, .folder = kFolder, .hasAll = hasAll},
                                     {.keep = keep_, .bytes = 64u << 20, .leases = 4});
    PSD_REQUIRE_OK(opened);
    store_ = *std::move(opened);
  }
  VersionStore& store() { return *store_; }
  /// Publishes a version in which `changed` random elements differ from the previous one.
  uint64_t publish(uint64_t changed) {
    for (uint64_t i = 0; i < changed; i++) values_[random_() % kElements] = static_cast<uint16_t>(random_());
    const auto made = store_->publish(
        {.step = ++step_, .created = "2026-11-29T00:00:00Z", .moment = VersionMoment::snapshot},
        {{{"w", "BF16", {kElements}, 0, kElements * 2}}, std::as_bytes(std::span(values_))});
    PSD_REQUIRE_OK(made);
    return made->number;
  }
  Bytes file(uint64_t number) {
    const auto info = store_->find(number);
    PSD_REQUIRE_OK(info);
    auto bytes = store_->read(number, 0, info->bytes);
    PSD_REQUIRE_OK(bytes);
    bytes->resize(info->bytes);
    return *bytes;
  }
  /// nullopt: there is none.
  std::optional<Bytes> patch(uint64_t from, uint64_t to) {
    const auto size = store_->patchBytes(store_->history(), from, to);
    PSD_REQUIRE_OK(size);
    if (*size == 0) return {};
    auto bytes = store_->readPatch(store_->history(), from, to, 0, *size);
    PSD_REQUIRE_OK(bytes);
    bytes->resize(*size);
    return *bytes;
  }
  /// The file of version `from`, after the patch to `to`.
  Bytes patched(Bytes file, uint64_t from, uint64_t to) {
    const auto bytes = patch(from, to);
    REQUIRE(bytes);
    CHECK(bytes->size() < file.size() / 2);
    const auto read = VersionPatch::read(*bytes);
    PSD_REQUIRE_OK(read);
    auto sums = contentSums(file);
    PSD_REQUIRE_OK(sums);
    const auto differ = read->apply(file, *sums);
    PSD_REQUIRE_OK(differ);
    CHECK(differ->empty());
    return file;
  }

 private:
  const std::shared_ptr<Env> env_;
  const uint64_t keep_;
  std::shared_ptr<VersionStore> store_;
  std::mt19937 random_{7};
  std::vector<uint16_t> values_ = std::vector<uint16_t>(kElements);
  uint64_t step_ = 0;
};

TEST_CASE("Version patches: a copy keeps the patch that made it, and makes one that leads from elsewhere") {
  Versions source(std::make_shared<MemoryFiles>());
  const auto store =
      VersionStore::open({.env = std::make_shared<MemoryFiles>(), .folder = kFolder, .copies = true},
                         {.keep = 4, .bytes = 64u << 20, .leases = 4});
  PSD_REQUIRE_OK(store);
  const auto patchOf = [&](VersionStore& of, uint64_t from, uint64_t to) {
    const auto size = of.patchBytes(source.store().history(), from, to);
    PSD_REQUIRE_OK(size);
    REQUIRE(*size > 0);
    auto bytes = of.readPatch(source.store().history(), from, to, 0, *size);
    PSD_REQUIRE_OK(bytes);
    bytes->resize(*size);
    return *bytes;
  };
  const auto adopt = [&](uint64_t number, const Bytes& patch) {
    PSD_REQUIRE_OK((*store)->adopt(*source.store().find(number), source.file(number), patch));
  };
  for (int i = 0; i < 4; i++) source.publish(100);
  adopt(1, {});
  Bytes applied = patchOf(source.store(), 1, 2);
  applied.back() ^= std::byte{1};  // so that it differs from one that is made here
  adopt(2, applied);
  CHECK(patchOf(**store, 1, 2) == applied);
  adopt(4, patchOf(source.store(), 3, 4));  // version 3 is not here
  CHECK(patchOf(**store, 2, 4) == patchOf(source.store(), 2, 4));
  source.publish(kElements);
  Bytes large(source.file(5).size() / 2 + 1);
  std::ranges::copy(patchOf(**store, 2, 4), large.begin());
  adopt(5, large);
  CHECK(*(*store)->patchBytes(source.store().history(), 4, 5) == 0);
}

TEST_CASE("Version patches: from any version to any later one, while what lies between exists") {
  Versions versions(std::make_shared<MemoryFiles>());
  std::map<uint64_t, Bytes> files;
  for (int i = 0; i < 6; i++) {
    const uint64_t number = versions.publish(200);
    files[number] = versions.file(number);
  }
  for (uint64_t from = 2; from <= 6; from++) {
    for (uint64_t to = from + 1; to <= 6; to++) {
      CAPTURE(from, to);
      CHECK(versions.patched(files[from], from, to) == files[to]);
    }
  }
  CHECK_FALSE(versions.patch(1, 6));  // version 2, with its patch, is gone
  CHECK_FALSE(versions.patch(6, 6));
  VersionStore& store = versions.store();
  const uint64_t history = store.history();
  const auto otherHistory = store.patchBytes(history + 1, 5, 6);
  PSD_REQUIRE_OK(otherHistory);
  CHECK(*otherHistory == 0);
  CHECK(store.patchBytes(history, 5, 7).error().code == ErrorCode::notReady);
  CHECK(store.readPatch(history, 1, 6, 0, 1).error().code == ErrorCode::notReady);
  for (const uint64_t from : {4, 5}) {  // a union, and a file
    const auto size = store.patchBytes(history, from, 6);
    PSD_REQUIRE_OK(size);
    CHECK(store.readPatch(history, from, 6, *size, 1).error().code == ErrorCode::badSlice);
    CHECK(store.readPatch(history, from, 6, 1, *size).error().code == ErrorCode::badSlice);
    CHECK(store.readPatch(history, from, 6, 0, 0).error().code == ErrorCode::badSlice);
    CHECK(store.readPatch(history, from, 6, 0, UINT64_MAX).error().code == ErrorCode::badSlice);
  }
}

TEST_CASE("Version patches: they survive a restart, and damaged or leftover ones do not") {
  const auto env = std::make_shared<MemoryFiles>();
  Versions versions(env);
  for (int i = 0; i < 4; i++) versions.publish(200);
  const Bytes first = versions.file(1), last = versions.file(4);
  versions.open();
  CHECK(versions.patched(first, 1, 4) == last);
  PSD_REQUIRE_OK(env->truncate("/versions/patch-0000000003.psdpatch", 100));
  for (const std::string name : {"patch-0000000009.psdpatch", "patch-0000000004.psdpatch.tmp.7"}) {
    PSD_REQUIRE_OK(env->create("/versions/" + name));
  }
  versions.open();
  CHECK_FALSE(versions.patch(1, 4));
  CHECK_FALSE(versions.patch(2, 3));
  CHECK(versions.patched(versions.file(3), 3, 4) == last);
  const auto names = env->list(kFolder);
  PSD_REQUIRE_OK(names);
  CHECK(std::ranges::count_if(*names, [](const std::string& name) { return name.starts_with("patch-"); }) ==
        2);
  versions.publish(200);  // the sums of version 4 are computed again
  CHECK(versions.patched(versions.file(4), 4, 5) == versions.file(5));
}

TEST_CASE("Version patches: none where most elements change, of another history, or beyond the limit") {
  const auto env = std::make_shared<MemoryFiles>();
  Versions versions(env);
  versions.publish(0);
  versions.publish(kElements);
  CHECK_FALSE(versions.patch(1, 2));
  versions.open(/*hasAll=*/false);  // another history begins
  versions.publish(10);
  CHECK_FALSE(versions.patch(2, 3));
  const uint64_t number = versions.publish(10);
  CHECK(versions.patch(number - 1, number));
}

}  // namespace
}  // namespace psd::version_patches_test

#include "server/store/staged_pieces.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "test/support/catch.h"

namespace psd::staged_pieces_test {
namespace {

constexpr uint64_t kPiece = 16 * 1024;  // floats: the granularity of buffers

std::shared_ptr<StagingPool> poolOf(uint64_t buffers) {
  return StagingPool::make(StagingPool::hostMemory(),
                           {.lentBytesMax = buffers * kPiece * sizeof(float), .idleBytesMax = 0});
}

/// Copies `values` like a device: nothing of a piece before wait(), all of it by then.
struct Copying {
  struct Queued {
    uint64_t at, count;
    const float* from;
  };

  explicit Copying(uint64_t elements) : values(elements), arrived(elements) {
    std::iota(values.begin(), values.end(), 1.f);
  }

  Status copy(StagingPool& pool, uint64_t floatsEach = 1) {
    const StagedPieces pieces{values.size(), kPiece / floatsEach, floatsEach};
    const auto visit = [&](uint64_t at, uint64_t count, float* buffer) -> Status {
      std::copy_n(values.begin() + static_cast<ptrdiff_t>(at), count, buffer);
      if (floatsEach == 2) std::copy_n(values.begin() + static_cast<ptrdiff_t>(at), count, buffer + count);
      queued.push_back({at, count, buffer});
      return {};
    };
    return forEachStaged(pool, pieces, staged, visit, [&]() -> Status {
      ++waits;
      finish();
      return {};
    });
  }

  void finish() {
    for (const Queued& each : queued) {
      std::copy_n(each.from, each.count, arrived.begin() + static_cast<ptrdiff_t>(each.at));
    }
    queued.clear();
  }

  std::vector<float> values, arrived;
  std::vector<std::shared_ptr<float>> staged;
  std::vector<Queued> queued;
  int waits = 0;
};

TEST_CASE("an operation takes a staging buffer for each of its pieces, and does not wait") {
  auto pool = poolOf(1000);
  Copying copying(5 * kPiece + 7);
  PSD_REQUIRE_OK(copying.copy(*pool));
  CHECK(copying.staged.size() == 6);
  CHECK(copying.waits == 0);
  copying.finish();
  CHECK((copying.arrived == copying.values));
}

TEST_CASE("pieces beyond the maximum number of buffers take turns, which bounds a large operation") {
  auto pool = poolOf(1000);
  Copying copying(40 * kPiece);
  PSD_REQUIRE_OK(copying.copy(*pool));
  CHECK(copying.staged.size() == StagedPieces::kBuffersMax);
  CHECK(pool->lentBytes() == StagedPieces::kBuffersMax * kPiece * sizeof(float));
  CHECK(copying.waits == 2);
  copying.finish();
  CHECK((copying.arrived == copying.values));
}

TEST_CASE("an operation works with the buffers that a pool has left") {
  for (uint64_t left = 1; left <= 3; ++left) {
    INFO(left << " left");
    auto pool = poolOf(4);
    const auto lent = pool->acquire((4 - left) * kPiece);
    PSD_REQUIRE_OK(lent);
    Copying copying(7 * kPiece + 1);
    PSD_REQUIRE_OK(copying.copy(*pool));
    CHECK(copying.staged.size() == left);
    copying.finish();
    CHECK((copying.arrived == copying.values));
  }
}

TEST_CASE("an operation that gets no staging buffer is rejected before it does anything") {
  auto pool = poolOf(4);
  const auto lent = pool->acquire(4 * kPiece);
  PSD_REQUIRE_OK(lent);
  Copying copying(3 * kPiece);
  const Status refused = copying.copy(*pool);
  REQUIRE(!refused.ok());
  CHECK(refused.error().code == ErrorCode::overloaded);
  CHECK(copying.queued.empty());
  CHECK(copying.staged.empty());
}

TEST_CASE("an element may take more than one float of its buffer, and there may be none") {
  auto pool = poolOf(1000);
  Copying copying(kPiece + 3);
  PSD_REQUIRE_OK(copying.copy(*pool, 2));
  CHECK(copying.staged.size() == 3);
  copying.finish();
  CHECK((copying.arrived == copying.values));
  Copying nothing(0);
  PSD_REQUIRE_OK(nothing.copy(*pool));
  CHECK(nothing.staged.empty());
}

TEST_CASE("a failure of a piece or of a wait ends the operation") {
  auto pool = poolOf(2);
  std::vector<std::shared_ptr<float>> staged;
  int visits = 0;
  const Error broken{ErrorCode::internal, "broken"};
  const auto count = [&](uint64_t, uint64_t, float*) -> Status { return ++visits, Status(); };
  CHECK(!forEachStaged(*pool, {5 * kPiece, kPiece}, staged, count, [&] { return Status(broken); }).ok());
  CHECK(visits == 2);
  staged.clear();
  const auto fail = [&](uint64_t, uint64_t, float*) -> Status { return ++visits, Status(broken); };
  CHECK(!forEachStaged(*pool, {kPiece, kPiece}, staged, fail, [] { return Status(); }).ok());
  CHECK(visits == 3);
}

}  // namespace
}  // namespace psd::staged_pieces_test

#include "trainer/client/transport/shared_copy.h"

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "test/support/catch.h"

namespace psd::client_shared_copy_test {
namespace {

constexpr uint64_t kElements = 1'000'000;  // eight pieces
constexpr uint64_t kVersionsAt = kElements * sizeof(float), kVersionStep = 64,
                   kReadableAt = kVersionsAt + 128;

/// Two shards at the versions 5 and 7, each value its position.
std::shared_ptr<const SharedModel> sharedModel() {
  const auto memory = SharedMemory::create("a-test", kReadableAt + 64, SharedAccess::readOnly);
  PSD_REQUIRE_OK(memory);
  auto* const values = reinterpret_cast<float*>((*memory)->data());
  std::iota(values, values + kElements, 0.f);
  const auto word = [&](uint64_t at) -> uint64_t& {
    return *reinterpret_cast<uint64_t*>((*memory)->data() + at);
  };
  word(kVersionsAt) = 5;
  word(kVersionsAt + kVersionStep) = 7;
  word(kReadableAt) = 1;
  auto model = SharedModel::open((*memory)->fd(), {0, kVersionsAt, kVersionStep, kReadableAt},
                                 ShardPlan::make(kElements, 2));
  PSD_REQUIRE_OK(model);
  return std::move(*model);
}

TEST_CASE("threads that help with a copy take every piece once") {
  const auto model = sharedModel();
  const std::vector<float> all(model->values().begin(), model->values().end());
  std::vector<float> values(kElements);
  SharedCopy copy(model, values);
  CHECK_FALSE(copy.done());
  std::atomic<int> pieces = 0;
  std::vector<std::thread> helpers;
  for (int i = 0; i < 3; i++) {
    helpers.emplace_back([&] {
      while (copy.copyPiece()) pieces++;
    });
  }
  for (std::thread& helper : helpers) helper.join();
  CHECK(pieces == 8);
  CHECK(copy.done());
  CHECK(values == all);
  const PullInfo info = copy.info();
  CHECK(info.versions == std::vector<Version>{Version{5}, Version{7}});
  CHECK(info.bytes == kElements * sizeof(float));
}

TEST_CASE("a copy that is stopped takes no more pieces, and is not done") {
  std::vector<float> values(kElements);
  const auto model = sharedModel();
  SharedCopy copy(model, values);
  CHECK(copy.copyPiece());
  copy.stop();
  CHECK_FALSE(copy.copyPiece());
  CHECK_FALSE(copy.done());
  CHECK(values.back() == 0);
}

}  // namespace
}  // namespace psd::client_shared_copy_test

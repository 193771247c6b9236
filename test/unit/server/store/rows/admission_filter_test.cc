#include "server/store/rows/admission_filter.h"

#include <vector>

#include "common/types/split_mix.h"
#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd {
namespace {

using testing::Random;
using Terms = AdmissionFilter::Terms;

TEST_CASE("a filter's memory is a power of two of blocks within its budget") {
  CHECK(Terms::of(3, 1).blockBits == 0);
  CHECK(Terms::of(3, 127).blockBits == 0);
  CHECK(Terms::of(3, 128).blockBits == 1);
  CHECK(Terms::of(3, uint64_t{1} << 20).blockBits == 14);
  CHECK(Terms::of(3, UINT64_MAX).blockBits == AdmissionFilter::kBlockBitsMax);
  CHECK(Terms::of(255, 64).valid());
  CHECK_FALSE(Terms{1, 3}.valid());
  CHECK_FALSE(Terms{256, 3}.valid());
  CHECK_FALSE(Terms{2, AdmissionFilter::kBlockBitsMax + 1}.valid());
}

TEST_CASE("a filter counts each id, and never too low before it decays") {
  AdmissionFilter filter({10, 12}, {});
  Random random(1);
  std::vector<uint64_t> hashes(2000);
  for (uint64_t& hash : hashes) hash = random.engine()();
  for (uint32_t times = 1; times <= 5; times++) {
    uint64_t tooHigh = 0;
    for (const uint64_t hash : hashes) {
      filter.add(hash);
      REQUIRE(filter.count(hash) >= times);
    }
    for (const uint64_t hash : hashes) tooHigh += filter.count(hash) > times;
    CHECK(tooHigh < hashes.size() / 100);
  }
}

TEST_CASE("with a fifth as many ids as counters, a count is too high for at most one id in ten") {
  constexpr uint32_t kBlockBits = 12;
  AdmissionFilter filter({3, kBlockBits}, {});
  for (uint64_t i = 0; i < (uint64_t{64} << kBlockBits) / 5; i++) filter.add(splitMix(i));
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < 10'000; i++) wrong += filter.count(splitMix(i + (uint64_t{1} << 40))) > 0;
  CHECK(wrong <= 1'200);
  CHECK(wrong > 0);
}

TEST_CASE("a filter decays, so that ids seen once do not fill it permanently") {
  AdmissionFilter filter({2, 4}, {});
  for (uint64_t i = 0; i < 100'000; i++) filter.add(splitMix(i));
  uint64_t counted = 0;
  for (uint64_t i = 0; i < 1'000; i++) counted += filter.count(splitMix(i + (uint64_t{1} << 40))) > 0;
  CHECK(counted < 250);
  // A frequent id is recognized nevertheless.
  for (int i = 0; i < 100; i++) filter.add(7);
  CHECK(filter.count(7) > 2);
}

TEST_CASE("a count saturates") {
  AdmissionFilter filter({255, 0}, {});
  for (int i = 0; i < 1'000; i++) filter.add(7);
  CHECK(filter.count(7) == 255);
}

TEST_CASE("a restored filter continues where it was saved, in any parts") {
  const Terms terms{4, 6};
  const auto parts = GENERATE(1u, 2u, 3u, 7u);
  AdmissionFilter whole(terms, {});
  Random random(parts);
  std::vector<uint64_t> hashes(300);
  for (uint64_t& hash : hashes) {
    hash = random.engine()();
    whole.add(hash);
  }
  const std::vector<uint64_t> saved = whole.saved();
  AdmissionFilter together(terms, {});
  for (uint32_t part = 0; part < parts; part++) {
    const uint64_t width = UINT64_MAX / parts;
    const HashRange range{part * width, part + 1 == parts ? UINT64_MAX : (part + 1) * width - 1};
    AdmissionFilter some(terms, range);
    REQUIRE(some.restore(saved));
    for (const uint64_t hash : hashes) {
      if (range.contains(hash)) REQUIRE(some.count(hash) == whole.count(hash));
    }
    REQUIRE(together.restore(some.saved()));
  }
  CHECK(together.saved() == saved);
  CHECK(AdmissionFilter(terms, {}).saved().empty());
}

TEST_CASE("bytes that no filter has saved are rejected") {
  AdmissionFilter filter({4, 6}, {});
  CHECK(filter.restore({}));
  CHECK_FALSE(filter.restore(std::vector<uint64_t>(8)));
  std::vector<uint64_t> block(9);
  block[0] = 64;  // of 64 blocks
  CHECK_FALSE(filter.restore(block));
  block[0] = 63;
  CHECK(filter.restore(block));
}

}  // namespace
}  // namespace psd

#include "common/patch/tensor_patch.h"

#include <cmath>
#include <string>
#include <vector>

#include "common/patch/changed_bits.h"
#include "common/patch/patch_block.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/tensor_changes.h"

namespace psd::tensor_patch_test {
namespace {

using testing::Random;
using testing::randomBytes;
using Tensor = std::vector<std::byte>;

struct Encoded {
  PatchKind kind = PatchKind::same;
  std::vector<std::byte> bytes;

  TensorPatch patch() const { return {kind, bytes}; }
};

Encoded encoded(const Tensor& before, const Tensor& after, uint32_t elementBytes) {
  Encoded made;
  ContentSum sum = contentSum(before);
  const auto kind = encodeTensorPatch(readerOf(before), after, elementBytes, sum, made.bytes);
  PSD_REQUIRE_OK(kind);
  made.kind = *kind;
  REQUIRE(sum == contentSum(after));
  REQUIRE(made.bytes.size() <= after.size());
  PSD_REQUIRE_OK(checkTensorPatch(made.patch(), {after.size(), elementBytes}));
  return made;
}

/// Applies a patch twice, and requires that its effect is `after` each time.
void requireEffect(const TensorPatch& patch, const Tensor& before, const Tensor& after,
                   uint32_t elementBytes) {
  Tensor tensor = before;
  ContentSum sum = contentSum(before);
  for (int i = 0; i < 2; i++) {
    PSD_REQUIRE_OK(applyTensorPatch(patch, elementBytes, tensor, sum));
    REQUIRE(tensor == after);
    REQUIRE(sum == contentSum(after));
  }
}

Encoded merged(const Encoded& first, const Encoded& second, const Tensor& tensor, uint32_t elementBytes) {
  Encoded both;
  const PatchedTensor shape{tensor.size(), elementBytes};
  const auto kind = mergeTensorPatches(first.patch(), second.patch(), shape, both.bytes);
  PSD_REQUIRE_OK(kind);
  both.kind = *kind;
  PSD_REQUIRE_OK(checkTensorPatch(both.patch(), shape));
  return both;
}

/// A tensor that differs from `before` in one of many ways.
Tensor changed(const Tensor& before, uint32_t elementBytes, Random& random) {
  Tensor after = before;
  const uint64_t elements = after.size() / elementBytes;
  if (elements == 0) return after;
  switch (random.below(6)) {
    case 0: break;
    case 1: testing::changeElement(after, random.below(elements), elementBytes, random); break;
    case 2: after = randomBytes(after.size(), random); break;
    case 3:
      testing::changeRuns(after, random.between(1, 20), random.between(1, 3000), elementBytes, random);
      break;
    default:
      testing::scatterChanges(after, std::pow(10., -0.01 * static_cast<double>(random.between(1, 500))),
                              elementBytes, random);
  }
  return after;
}

/// Sizes around the edges of words and blocks.
uint64_t someElements(Random& random) {
  constexpr uint64_t kEdges[] = {0, 1, 2, 3, 63, 64, 65, 1000, 65535, 65536, 65537, 131072, 140'000};
  return random.oneIn(3) ? random.between(0, 150'000) : kEdges[random.below(std::size(kEdges))];
}

TEST_CASE("tensor patches: applied to the one tensor they give the other, once or twice") {
  for (uint64_t seed = 1; seed <= 300; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const uint32_t elementBytes = 1u << random.below(4);
    const Tensor a = randomBytes(someElements(random) * elementBytes, random);
    const Tensor b = changed(a, elementBytes, random), c = changed(b, elementBytes, random);
    const Encoded first = encoded(a, b, elementBytes), second = encoded(b, c, elementBytes);
    CHECK((first.kind == PatchKind::same) == (a == b));
    requireEffect(first.patch(), a, b, elementBytes);
    requireEffect(merged(first, second, a, elementBytes).patch(), a, c, elementBytes);
  }
}

TEST_CASE("tensor patches: the tensor before is read once, in order, piece by piece") {
  Random random(1);
  for (const uint32_t elementBytes : {1, 2, 4, 8}) {
    for (const uint64_t more : {0, 1, 8, 24}) {
      CAPTURE(elementBytes, more);
      const Tensor before = randomBytes((1u << 20) + more, random);
      Tensor after = before;
      for (const uint64_t at :
           {uint64_t{0}, uint64_t{(1u << 19) - 1}, uint64_t{1u << 19}, after.size() - 1}) {
        after[at] ^= std::byte{1};
      }
      uint64_t read = 0;
      size_t pieces = 0;
      Tensor piece;
      const TensorReader reader = [&](uint64_t at, uint64_t count) -> Result<std::span<const std::byte>> {
        REQUIRE(at == read);
        read += count;
        pieces++;
        piece.assign(before.begin() + static_cast<ptrdiff_t>(at),
                     before.begin() + static_cast<ptrdiff_t>(at + count));
        return std::span<const std::byte>(piece);
      };
      Encoded made;
      ContentSum sum = contentSum(before);
      const auto kind = encodeTensorPatch(reader, after, elementBytes, sum, made.bytes);
      PSD_REQUIRE_OK(kind);
      made.kind = *kind;
      CHECK(sum == contentSum(after));
      if (after.size() % elementBytes == 0) {
        CHECK(made.kind == PatchKind::overwrite);
        CHECK(read == before.size());
        CHECK(pieces >= 2);
      } else {
        CHECK(made.kind == PatchKind::whole);
      }
      requireEffect(made.patch(), before, after, elementBytes);
    }
  }
}

TEST_CASE("tensor patches: an error of reading is that of the patch") {
  const Tensor after(2u << 20);
  const TensorReader reader = [&](uint64_t at, uint64_t count) -> Result<std::span<const std::byte>> {
    if (at > 0) return Error{ErrorCode::io, "the disk fails"};
    return std::span<const std::byte>(after).subspan(at, count);
  };
  ContentSum sum;
  std::vector<std::byte> out;
  CHECK(encodeTensorPatch(reader, after, 4, sum, out).message() == "the disk fails");
}

TEST_CASE("tensor patches: every instruction set finds the same changes") {
  const InstructionSet best = bestInstructions();
  for (uint64_t seed = 1; seed <= 40; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    for (const uint32_t elementBytes : {1, 2, 4, 8}) {
      const uint64_t elements = random.between(1, 1000);
      const Tensor a = randomBytes(elements * elementBytes, random);
      Tensor b = a;
      testing::scatterChanges(b, 0.1, elementBytes, random);
      std::vector<uint64_t> expected((elements + 63) / 64);
      for (uint64_t i = 0; i < elements * elementBytes; i++) {
        if (a[i] != b[i]) expected[i / elementBytes / 64] |= uint64_t{1} << i / elementBytes % 64;
      }
      for (const InstructionSet set :
           {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
        if (set > best) continue;
        std::vector<uint64_t> found(expected.size(), ~uint64_t{0});
        changedBits(a.data(), b.data(), elements, elementBytes, found.data(), set);
        REQUIRE(found == expected);
      }
    }
  }
}

TEST_CASE("tensor patches: NaNs and zeros of either sign are bits") {
  const auto tensorOf = [](std::vector<float> values) {
    const auto bytes = std::as_bytes(std::span(values));
    return Tensor(bytes.begin(), bytes.end());
  };
  const Tensor nan = tensorOf({NAN, 1, 2, 0.f}), same = nan, other = tensorOf({NAN, 1, 2, -0.f});
  CHECK(encoded(nan, same, 4).kind == PatchKind::same);
  const Encoded patch = encoded(nan, other, 4);
  CHECK(patch.kind == PatchKind::overwrite);
  requireEffect(patch.patch(), nan, other, 4);
}

TEST_CASE("tensor patches: of scattered changes within a twentieth of the entropy of places and values") {
  constexpr uint64_t kElements = 4u << 20;
  for (const uint32_t elementBytes : {2, 4}) {
    Random random(elementBytes);
    const Tensor before(kElements * elementBytes);
    for (const double density : {0.003, 0.01, 0.03, 0.08}) {
      INFO("density " << density << ", elements of " << elementBytes << " bytes");
      Tensor after = before;
      const auto count = static_cast<double>(testing::scatterChanges(after, density, elementBytes, random));
      const double p = count / kElements;
      const double entropy = -p * std::log2(p) - (1 - p) * std::log2(1 - p);
      const double least = (entropy / p + 8 * elementBytes) * count / 8;
      const Encoded patch = encoded(before, after, elementBytes);
      CHECK(patch.kind == PatchKind::overwrite);
      CHECK(static_cast<double>(patch.bytes.size()) <= 1.05 * least);
    }
  }
}

TEST_CASE("tensor patches: one change, runs and dense changes take about the bytes of their values") {
  Random random(5);
  constexpr uint64_t kElements = 1u << 20;
  const Tensor before = randomBytes(2 * kElements, random);
  Tensor after = before;
  testing::changeElement(after, kElements / 2, 2, random);
  CHECK(encoded(before, after, 2).bytes.size() <= 16);

  after = before;
  for (uint64_t run = 0; run < 100; run++) {
    for (uint64_t i = 0; i < 512; i++) testing::changeElement(after, run * 10'000 + i, 2, random);
  }
  CHECK(encoded(before, after, 2).bytes.size() <= 100 * (2 * 512 + 16));

  after = before;
  testing::scatterChanges(after, 0.5, 2, random);
  const Encoded half = encoded(before, after, 2);
  CHECK(half.kind == PatchKind::overwrite);
  CHECK(half.bytes.size() <= kElements * 9 / 8 * 1.01);

  CHECK(encoded(before, randomBytes(2 * kElements, random), 2).kind == PatchKind::whole);
}

TEST_CASE("tensor patches: a merged one is about as small as that from first to last") {
  Random random(6);
  const Tensor a = randomBytes(2u << 20, random);
  for (const double density : {0.003, 0.01, 0.08, 0.4}) {
    INFO("density " << density);
    Tensor b = a, c;
    testing::scatterChanges(b, density, 2, random);
    c = b;
    testing::scatterChanges(c, density, 2, random);
    const Encoded direct = encoded(a, c, 2), both = merged(encoded(a, b, 2), encoded(b, c, 2), a, 2);
    CHECK(static_cast<double>(both.bytes.size()) <= 1.02 * static_cast<double>(direct.bytes.size()));
  }
}

TEST_CASE("tensor patches: damaged ones change nothing outside the tensor, and are found before") {
  size_t refused = 0;
  for (uint64_t seed = 1; seed <= 3000; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const uint32_t elementBytes = 1u << random.below(4);
    const Tensor before = randomBytes(random.between(1, 300) * elementBytes, random);
    Encoded patch = encoded(before, changed(before, elementBytes, random), elementBytes);
    if (patch.bytes.empty()) continue;
    if (random.oneIn(2)) {
      patch.bytes.resize(random.below(patch.bytes.size()));
    } else {
      patch.bytes[random.below(std::min<size_t>(patch.bytes.size(), 24))] ^=
          static_cast<std::byte>(1 << random.below(8));
    }
    // In memory of exactly its size, so that a sanitizer sees what lies outside.
    Tensor tensor = before;
    const Status valid = checkTensorPatch(patch.patch(), {before.size(), elementBytes});
    ContentSum sum = contentSum(before);
    const Status applied = applyTensorPatch(patch.patch(), elementBytes, tensor, sum);
    REQUIRE(applied.ok() == valid.ok());
    std::vector<std::byte> unused;
    REQUIRE(mergeTensorPatches(patch.patch(), patch.patch(), {before.size(), elementBytes}, unused).ok() ==
            valid.ok());
    refused += valid.ok() ? 0 : 1;
  }
  CHECK(refused > 500);
}

/// The error for the bytes of a patch of 100 elements of 2 bytes.
std::string refusalOf(const std::string& hex, PatchKind kind = PatchKind::overwrite) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 3) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return checkTensorPatch({kind, bytes}, {200, 2}).message();
}

TEST_CASE("tensor patches: the error says what is damaged") {
  // One element: index 0, kind, count − 1, then 6 low bits and ⌈(1 + 1) / 8⌉ bytes, then the value.
  CHECK(refusalOf("00 00 00 00 00 00 00 00 05 01 aa bb").empty());
  CHECK(refusalOf("") == "a changed tensor has no patch");
  CHECK(refusalOf("00", PatchKind::same) == "an unchanged tensor has a patch");
  CHECK(refusalOf("00", PatchKind::whole) == "a whole tensor has another size");
  CHECK(refusalOf("00", static_cast<PatchKind>(3)) == "a tensor has an unknown kind of patch");
  CHECK(refusalOf("00 00 00 00 00 00 00") == "the head of a block is truncated");
  CHECK(refusalOf("01 00 00 00 00 00 00 00 05 01 aa bb") == "a block is past the end of the tensor");
  CHECK(refusalOf("00 00 00 00 03 00 00 00 05 01 aa bb") == "a block has an unknown kind of positions");
  CHECK(refusalOf("00 00 00 00 00 00 64 00 05 01 aa bb") == "a block has more positions than elements");
  CHECK(refusalOf("00 00 00 00 00 00 00 00 05") == "the positions of a block are truncated");
  CHECK(refusalOf("00 00 00 00 00 00 00 00 05 00 aa bb") ==
        "the positions of a block do not match its count");
  CHECK(refusalOf("00 00 00 00 00 00 00 00 05 03 aa bb") ==
        "the positions of a block do not match its count");
  CHECK(refusalOf("00 00 00 00 00 00 00 00 3f 02 aa bb") == "a position is past the last element");
  CHECK(refusalOf("00 00 00 00 00 00 00 00 05 01 aa") == "the values of a block are truncated");
  CHECK(refusalOf("00 00 00 00 00 00 00 00 05 01 aa bb 00 00 00 00 00 00 00 00 05 01 aa bb") ==
        "blocks do not ascend");
  CHECK(refusalOf("00 00 00 00 00 00 01 00 25 00 03 aa bb cc dd") == "positions do not ascend");
  CHECK(refusalOf("00 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 aa bb").empty());
  CHECK(refusalOf("00 00 00 00 02 00 01 00 01 00 00 00 00 00 00 00 00 00 00 00 00 aa bb") ==
        "a bitmap does not match its block's count");
  CHECK(refusalOf("00 00 00 00 02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 80 aa bb") ==
        "a position is past the last element");
  const std::vector<std::byte> bytes(10);
  CHECK(checkTensorPatch({PatchKind::overwrite, bytes}, {201, 2}).message() ==
        "changes of elements in a tensor that is no whole number of elements");
}

TEST_CASE("tensor patches: a tensor that is no whole number of elements travels whole") {
  Random random(8);
  const Tensor before = randomBytes(7, random);
  Tensor after = before;
  CHECK(encoded(before, after, 4).kind == PatchKind::same);
  after[6] ^= std::byte{1};
  const Encoded patch = encoded(before, after, 4);
  CHECK(patch.kind == PatchKind::whole);
  requireEffect(patch.patch(), before, after, 4);
}

}  // namespace
}  // namespace psd::tensor_patch_test

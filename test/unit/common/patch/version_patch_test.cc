#include "common/patch/version_patch.h"

#include <cstring>
#include <string>
#include <vector>

#include "common/checksum/crc32c.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/tensor_changes.h"
#include "test/support/version_files.h"

namespace psd::version_patch_test {
namespace {

using testing::Random;
using testing::randomBytes;
using testing::versionFile;
using testing::VersionTensor;
using Bytes = std::vector<std::byte>;

std::vector<VersionTensor> someTensors(Random& random) {
  return {{"embedding", "BF16", randomBytes(2 * 70'001, random)},  // an odd number of elements: the next are
                                                                   // unaligned
          {"weight", "F32", randomBytes(4 * 999, random)},
          {"empty", "F16", {}},
          {"double", "F64", randomBytes(8 * 33, random)},
          {"flags", "BOOL", randomBytes(13, random)},
          {"small", "F8_E4M3", randomBytes(501, random)}};
}

/// The tensors of the next version: some equal, some with few changes, some new.
std::vector<VersionTensor> nextOf(std::vector<VersionTensor> tensors, Random& random) {
  for (VersionTensor& tensor : tensors) {
    const auto elementBytes = static_cast<uint32_t>(safetensorsElementBytes(tensor.dtype));
    switch (random.below(4)) {
      case 0: break;
      case 1: tensor.bytes = randomBytes(tensor.bytes.size(), random); break;
      case 2: testing::changeRuns(tensor.bytes, 3, 40, elementBytes, random); break;
      default: testing::scatterChanges(tensor.bytes, 0.02, elementBytes, random);
    }
  }
  return tensors;
}

Bytes patchBetween(const Bytes& base, const Bytes& next) {
  const auto before = contentSums(base), after = contentSums(next);
  PSD_REQUIRE_OK(before);
  PSD_REQUIRE_OK(after);
  std::vector<ContentSum> sums = *before;
  Bytes patch;
  PSD_REQUIRE_OK(makeVersionPatch(base, next, sums, appendingTo(patch)));
  REQUIRE(sums == *after);
  return patch;
}

VersionPatch readPatch(const Bytes& bytes) {
  auto patch = VersionPatch::read(bytes);
  PSD_REQUIRE_OK(patch);
  return *std::move(patch);
}

void requireEffect(const VersionPatch& patch, const Bytes& base, const Bytes& next) {
  Bytes file = base;
  std::vector<ContentSum> sums = *contentSums(base);
  const auto wrong = patch.apply(file, sums);
  PSD_REQUIRE_OK(wrong);
  REQUIRE(wrong->empty());
  REQUIRE(file == next);
  REQUIRE(sums == *contentSums(next));
  PSD_REQUIRE_OK(verifyVersion(file, patch.header().info.number, patch.header().info.history));
}

/// The error of applying `patch` to `base`, which must not change.
std::string refusalOf(const Bytes& patch, const Bytes& base) {
  Bytes file = base;
  const auto read = VersionPatch::read(patch);
  if (!read.ok()) {
    CHECK(read.error().code == ErrorCode::io);
    return read.message();
  }
  std::vector<ContentSum> sums(read->tensors().size());
  const auto applied = read->apply(file, sums);
  CHECK(file == base);
  if (applied.ok()) return "";
  CHECK(applied.error().code == ErrorCode::modelMismatch);
  return applied.message();
}

/// `patch` with the checksum of its bytes.
Bytes resealed(Bytes patch) {
  const uint32_t checksum = crc32c(std::span(patch).first(patch.size() - sizeof checksum));
  std::memcpy(patch.data() + patch.size() - sizeof checksum, &checksum, sizeof checksum);
  return patch;
}

struct Versions {
  Bytes first, second;
  explicit Versions(uint64_t seed = 1) {
    Random random(seed);
    const auto tensors = someTensors(random);
    first = versionFile(1, tensors);
    second = versionFile(2, nextOf(tensors, random));
  }
};

TEST_CASE("version patches: from any version to the next, and from the first to the last at once") {
  for (uint64_t seed = 1; seed <= 30; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    std::vector<VersionTensor> tensors = someTensors(random);
    std::vector<Bytes> files{versionFile(3, tensors)}, bytes;
    for (const uint64_t number : {4, 6, 7, 10}) {
      tensors = nextOf(tensors, random);
      files.push_back(versionFile(number, tensors));
      bytes.push_back(patchBetween(files[files.size() - 2], files.back()));
    }
    std::vector<VersionPatch> patches;
    for (size_t i = 0; i < bytes.size(); i++) {
      patches.push_back(readPatch(bytes[i]));
      requireEffect(patches.back(), files[i], files[i + 1]);
    }
    CHECK(patches[1].from() == 4);
    CHECK(patches[1].header().info.number == 6);
    Bytes merged;
    PSD_REQUIRE_OK(mergeVersionPatches(patches, appendingTo(merged)));
    requireEffect(readPatch(merged), files.front(), files.back());
    Bytes one;
    PSD_REQUIRE_OK(mergeVersionPatches(std::span(patches).first(1), appendingTo(one)));
    CHECK(one == bytes.front());
  }
}

TEST_CASE("version patches: equal tensors take the bytes of a head") {
  Random random(2);
  const auto tensors = someTensors(random);
  const Bytes base = versionFile(1, tensors), next = versionFile(2, tensors);
  CHECK(patchBetween(base, next).size() == 56 + (2048 - 8) + tensors.size() * 48 + 4);
}

TEST_CASE("version patches: an interrupted one applies again") {
  const Versions versions;
  const Bytes bytes = patchBetween(versions.first, versions.second);
  const VersionPatch patch = readPatch(bytes);
  Bytes file = versions.second;
  std::copy_n(versions.first.begin(), 2048, file.begin());  // all tensors are changed, and the header is not
  requireEffect(patch, file, versions.second);
}

TEST_CASE("version patches: a truncated or changed byte is found before anything is changed") {
  const Versions versions(3);
  const Bytes patch = patchBetween(versions.first, versions.second);
  Random random(3);
  for (int i = 0; i < 300; i++) {
    Bytes damaged = patch;
    if (i % 3 == 0) {
      damaged.resize(random.below(patch.size()));
    } else {
      damaged[random.below(patch.size())] ^= static_cast<std::byte>(1 << random.below(8));
    }
    CHECK(refusalOf(damaged, versions.first).starts_with("the patch is damaged: it"));
  }
}

TEST_CASE("version patches: bytes with a right checksum are still checked") {
  const Versions versions(4);
  const Bytes patch = patchBetween(versions.first, versions.second);
  const auto with = [&](size_t at, uint8_t byte) {
    Bytes other = patch;
    other[at] = static_cast<std::byte>(byte);
    return refusalOf(resealed(std::move(other)), versions.first);
  };
  constexpr size_t kTensors = 56 + 2040;
  CHECK(with(0, 'x') == "the patch is damaged: it does not begin as a patch");
  CHECK(with(8, 2) == "the patch is damaged: its format is 2; this psd reads format 1");
  CHECK(with(12, 9) == "the patch is damaged: its number of tensors differs from its header's");
  CHECK(with(16, 9) == "the patch is damaged: its numbers and its header contradict each other");
  CHECK(with(24, 2) == "the patch is damaged: its numbers and its header contradict each other");
  CHECK(with(40, 9).starts_with("the patch is damaged: "));
  CHECK(with(55, 9) == "the patch is damaged: its header is truncated");
  CHECK(with(kTensors, 7) ==
        "the patch is damaged: tensor 'embedding': a tensor has an unknown kind of patch");
  CHECK(with(kTensors + 4, 1).starts_with("the patch is damaged: tensor 'embedding': "));
  CHECK(with(kTensors + 14, 9) == "the patch is damaged: tensor 'embedding': it is truncated");
  Bytes longer = patch;
  longer.insert(longer.begin() + static_cast<ptrdiff_t>(patch.size() - 4), std::byte{0});
  CHECK(refusalOf(resealed(longer), versions.first) == "the patch is damaged: bytes follow its last tensor");
  CHECK(refusalOf({}, versions.first) == "the patch is damaged: it is truncated");
}

TEST_CASE("version patches: another version, history or model is no base") {
  Random random(5);
  const auto tensors = someTensors(random);
  const auto next = nextOf(tensors, random);
  const Bytes patch = patchBetween(versionFile(1, tensors), versionFile(2, next));
  CHECK(refusalOf(patch, versionFile(2, next)) ==
        "the patch is for version 1 of history 0000000000000007, not for version 2 of 0000000000000007");
  CHECK(refusalOf(patch, versionFile(1, tensors, 8)) ==
        "the patch is for version 1 of history 0000000000000007, not for version 1 of 0000000000000008");
  auto renamed = tensors;
  renamed[1].name = "weights";
  CHECK(refusalOf(patch, versionFile(1, renamed)) ==
        "tensor 1 of version 1 is weights F32[999], of version 2 weight F32[999]");
  auto fewer = tensors;
  fewer.back().name = "larger";
  fewer.back().bytes.push_back({});
  CHECK(refusalOf(patch, versionFile(1, fewer)).starts_with("the patch is for a file of "));
  CHECK(refusalOf(patch, versionFile(1, tensors, 7, 2056)).starts_with("the patch is for a file of "));

  std::vector<ContentSum> sums = *contentSums(versionFile(1, tensors));
  Bytes none;
  const auto refused = [&](const Bytes& base, const Bytes& other) {
    const Status made = makeVersionPatch(base, other, sums, appendingTo(none));
    CHECK(made.error().code == ErrorCode::modelMismatch);
    return made.message();
  };
  CHECK(refused(versionFile(1, tensors), versionFile(1, tensors)) ==
        "a patch leads to a later version, not from 1 to 1");
  CHECK(refused(versionFile(1, tensors), versionFile(2, tensors, 8)) ==
        "the versions are of histories 0000000000000007 and 0000000000000008");
  CHECK(refused(versionFile(1, tensors), versionFile(2, renamed)) ==
        "tensor 1 of version 1 is weight F32[999], of version 2 weights F32[999]");
  CHECK(none.empty());
}

TEST_CASE("version patches: the names of tensors with other values are reported") {
  const Versions versions(6);
  const Bytes bytes = patchBetween(versions.first, versions.second);
  const VersionPatch patch = readPatch(bytes);
  for (size_t i = 0; i < patch.tensors().size(); i++) {
    if (patch.tensors()[i].patch.kind == PatchKind::whole) continue;
    Bytes file = versions.first;
    std::vector<ContentSum> sums = *contentSums(file);
    sums[i].second++;
    const auto wrong = patch.apply(file, sums);
    PSD_REQUIRE_OK(wrong);
    CHECK(*wrong == std::vector<std::string>{patch.header().tensors[i].name});
    CHECK(file == versions.second);
  }
}

TEST_CASE("version patches: only those that continue each other are merged") {
  Random random(7);
  const auto one = someTensors(random), two = nextOf(one, random), three = nextOf(two, random);
  const Bytes first = patchBetween(versionFile(1, one), versionFile(2, two)),
              second = patchBetween(versionFile(2, two), versionFile(3, three)),
              stranger = patchBetween(versionFile(2, one), versionFile(3, three));
  Bytes merged;
  const std::vector<VersionPatch> reversed{readPatch(second), readPatch(first)};
  CHECK(mergeVersionPatches(reversed, appendingTo(merged)).message() ==
        "the patch is for version 1 of history 0000000000000007, not for version 3 of 0000000000000007");
  const std::vector<VersionPatch> strange{readPatch(first), readPatch(stranger)};
  CHECK(mergeVersionPatches(strange, appendingTo(merged))
            .message()
            .starts_with("the patches to and from version 2 disagree about tensor '"));
}

TEST_CASE("version patches: an error of the sink ends the writing") {
  const Versions versions(8);
  std::vector<ContentSum> sums = *contentSums(versions.first);
  int pieces = 0;
  const Status made = makeVersionPatch(versions.first, versions.second, sums, [&](auto) -> Status {
    return ++pieces < 4 ? Status() : Status(ErrorCode::io, "the disk is full");
  });
  CHECK(made.message() == "the disk is full");
  CHECK(pieces == 4);
}

}  // namespace
}  // namespace psd::version_patch_test

// A patch between published versions, and that of one tensor.

#include <algorithm>
#include <cstring>

#include "common/checksum/crc32c.h"
#include "common/patch/version_patch.h"
#include "test/fuzz/fuzz_list.h"
#include "test/support/version_files.h"

namespace psd::fuzz {
namespace {
namespace patch_fuzz {

using testing::versionFile;
using testing::VersionTensor;

/// The tensors of version `number`: each has a few more changes.
std::vector<VersionTensor> tensorsOf(uint64_t number) {
  std::vector<VersionTensor> tensors{{"w", "BF16", std::vector<std::byte>(2 * 101)},
                                     {"b", "F32", std::vector<std::byte>(4 * 7)},
                                     {"mask", "BOOL", std::vector<std::byte>(300)}};
  for (uint64_t i = 1; i < number; i++) {
    for (uint64_t j = 0; j < 4; j++)
      tensors[0].bytes[(31 * i + 17 * j) % 202] = static_cast<std::byte>(i + j);
    tensors[1].bytes.assign(tensors[1].bytes.size(), static_cast<std::byte>(i));
    std::fill_n(tensors[2].bytes.begin() + static_cast<ptrdiff_t>(20 * i), 60, static_cast<std::byte>(i));
  }
  return tensors;
}

std::vector<std::byte> fileOf(uint64_t number) { return versionFile(number, tensorsOf(number), 7, 1024); }

std::string patchOf(uint64_t from, uint64_t to) {
  const std::vector<std::byte> base = fileOf(from);
  std::vector<ContentSum> sums = *contentSums(base);
  std::vector<std::byte> out;
  require(makeVersionPatch(base, fileOf(to), sums, appendingTo(out)).ok(), "a patch is made");
  return {reinterpret_cast<const char*>(out.data()), out.size()};
}

void runVersion(Bytes input) {
  const auto patch = VersionPatch::read(input);
  if (!patch.ok()) {
    require(patch.message().starts_with("the patch is damaged: "), "an error says what it is about");
    require(patch.message().find('\n') == std::string::npos, "an error is one line");
    return;
  }
  std::vector<std::byte> file = fileOf(1);
  const std::vector<std::byte> before = file;
  std::vector<ContentSum> sums(patch->tensors().size());
  const auto applied = patch->apply(file, sums);
  require(applied.ok() || file == before, "a refused patch changes nothing");
  std::vector<std::byte> merged;
  require(mergeVersionPatches(std::span(&*patch, 1), appendingTo(merged)).ok(), "a patch merges with none");
  require(VersionPatch::read(merged).ok(), "a merged patch can be read");
}

void runTensor(Bytes input, uint64_t elements, uint32_t elementBytes) {
  const PatchedTensor shape{elements * elementBytes, elementBytes};
  const TensorPatch patch{PatchKind::overwrite, input};
  std::vector<std::byte> tensor(shape.bytes), merged;
  ContentSum sum;
  const bool valid = checkTensorPatch(patch, shape).ok();
  const bool applied = applyTensorPatch(patch, elementBytes, tensor, sum).ok();
  require(applied == valid, "a patch that was accepted can be applied");
  require(
      !applied || sum ==
                      [&] {
                        ContentSum change = contentSum(tensor);
                        return change -= contentSum(std::vector<std::byte>(shape.bytes));
                      }(),
      "the sum follows the changes");
  const auto both = mergeTensorPatches(patch, patch, shape, merged);
  require(both.ok() == valid, "a patch that was accepted can be merged");
  if (!valid) return;
  std::vector<std::byte> again(shape.bytes);
  require(applyTensorPatch({*both, merged}, elementBytes, again, sum).ok() && again == tensor,
          "a patch merged with itself has the same effect");
}

void run(Bytes input) {
  runVersion(input);
  runTensor(input, 101, 2);
  runTensor(input, 70'000, 1);
  uint32_t checksum = 0;
  if (input.size() < sizeof checksum) return;
  // With the checksum that the bytes should have, so that the checks after it are reached.
  std::vector<std::byte> sealed(input.begin(), input.end());
  checksum = crc32c(input.first(input.size() - sizeof checksum));
  std::memcpy(sealed.data() + sealed.size() - sizeof checksum, &checksum, sizeof checksum);
  runVersion(sealed);
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds{patchOf(1, 2), patchOf(1, 5), patchOf(2, 3)};
  // The patches of single tensors are seeds as well.
  for (const std::string& version : std::vector(seeds)) {
    const auto patch = VersionPatch::read(bytesOf(version));
    require(patch.ok(), "a seed is valid");
    for (const VersionTensorPatch& tensor : patch->tensors()) {
      if (tensor.patch.kind != PatchKind::overwrite) continue;
      seeds.emplace_back(reinterpret_cast<const char*>(tensor.patch.bytes.data()), tensor.patch.bytes.size());
    }
  }
  return seeds;
}

}  // namespace patch_fuzz
}  // namespace

const FuzzTarget kPatchTarget{"patch", "a patch between published versions", patch_fuzz::run,
                              patch_fuzz::seeds};

}  // namespace psd::fuzz

#include "trainer/client/received_version.h"

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "common/checksum/crc32c.h"
#include "common/patch/version_patch.h"
#include "common/safetensors/safetensors.h"
#include "test/support/catch.h"

namespace psd::client_received_version_test {
namespace {

using Metadata = std::map<std::string, std::string>;

/// A version's file, with the sizes 3 × 4 and 5 × 2 bytes of tensors.
const ModelSpec kModel{"two", {{"a", DType::f32, {3}}, {"b", DType::bf16, {5}}}};
const std::string kData = "twelve bytesten bytes.";

std::string crcOf(std::string_view text) { return crcText(crc32c(std::as_bytes(std::span(text)))); }

Metadata metadata() {
  return {
      {"psd.version", "7"},       {"psd.history", "0000000000001a2b"},
      {"psd.step", "40"},         {"psd.created", "2026-11-29T12:00:00Z"},
      {"psd.moment", "snapshot"}, {"psd.crc32c", crcOf(kData.substr(0, 12)) + " " + crcOf(kData.substr(12))}};
}

std::string fileOf(const Metadata& metadata, const ModelSpec& model = kModel,
                   const std::string& data = kData) {
  SafetensorsHead head;
  head.addMetadata(metadata);
  head.add(model);
  return head.text() + data;
}

Result<FetchedVersion> verify(const std::string& file) {
  PublishedVersion info{7, 0x1a2b, 40, "2026-11-29T12:00:00Z", VersionMoment::snapshot, file.size()};
  auto bytes = allocateVersion(file.size());
  PSD_REQUIRE_OK(bytes);
  std::memcpy(bytes->get(), file.data(), file.size());
  return verifyVersion(info, *bytes);
}

void checkDamaged(const std::string& file, const std::string& why) {
  const auto version = verify(file);
  REQUIRE_FALSE(version.ok());
  CHECK(version.error().code == ErrorCode::io);
  CHECK(version.message() == "version 7 is damaged: " + why);
}

}  // namespace

TEST_CASE("the bytes of a version become its tensors") {
  const std::string file = fileOf(metadata());
  const auto version = verify(file);
  PSD_REQUIRE_OK(version);
  CHECK(version->info.number == 7);
  CHECK(reinterpret_cast<uintptr_t>(version->file.get()) % 64 == 0);
  REQUIRE(version->tensors.size() == 2);
  for (size_t i = 0; i < 2; i++) {
    CHECK(version->tensors[i].name == kModel.tensors[i].name);
    CHECK(version->tensors[i].shape == kModel.tensors[i].shape);
  }
  CHECK(version->tensors[0].dtype == "F32");
  CHECK(version->tensors[1].dtype == "BF16");
  const auto b = version->bytesOf(version->tensors[1]);
  CHECK(std::string_view(reinterpret_cast<const char*>(b.data()), b.size()) == "ten bytes.");
}

TEST_CASE("any changed byte of a tensor is found, and the tensor named") {
  const std::string file = fileOf(metadata());
  for (size_t i = 0; i < kData.size(); i++) {
    for (const int bit : {0, 7}) {
      std::string changed = file;
      char& byte = changed[file.size() - kData.size() + i];
      byte = static_cast<char>(byte ^ (1 << bit));
      const auto version = verify(changed);
      REQUIRE_FALSE(version.ok());
      CHECK(version.error().code == ErrorCode::io);
      const std::string start =
          fmt::format("version 7 is damaged: the checksum of tensor '{}' is ", i < 12 ? 'a' : 'b');
      CHECK(version.message().substr(0, start.size()) == start);
    }
  }
}

TEST_CASE("a file that is cut off, or longer, is damaged") {
  const std::string file = fileOf(metadata());
  for (size_t size = 0; size < file.size(); size++) {
    const auto version = verify(file.substr(0, size));
    REQUIRE_FALSE(version.ok());
    CHECK(version.error().code == ErrorCode::io);
  }
  checkDamaged(file + "x", "bytes follow its last tensor");
  checkDamaged("short", "it is shorter than 8 bytes");
  checkDamaged(std::string(8, '\xff') + kData, "its header length does not fit its size");
}

TEST_CASE("a file of something else is not taken for the version") {
  const auto with = [](const char* key, const std::string& value) {
    Metadata other = metadata();
    other[key] = value;
    return fileOf(other);
  };
  checkDamaged(with("psd.version", "8"), "it says that it is version 8");
  checkDamaged(with("psd.history", "0000000000001a2c"),
               "it says that its history is 0000000000001a2c, not 0000000000001a2b");
  checkDamaged(with("psd.step", "41"), "it says that it is of step 41, and the daemon says 40");
  checkDamaged(fileOf({}),
               "its header has no psd.version, psd.history and psd.step, which every version has");
  checkDamaged(with("psd.crc32c", crcOf(kData.substr(0, 12))),
               "its header does not have one checksum for each tensor");
  checkDamaged(with("psd.crc32c", ""), "its header does not have one checksum for each tensor");
  const std::string data = "12345678901212345678";
  Metadata other = metadata();
  other["psd.crc32c"] = crcOf(data.substr(0, 12)) + " " + crcOf(data.substr(12));
  SafetensorsHead head;
  head.addMetadata(other);
  head.add("a", "F32", {3}, 12);
  head.add("n", "F8_E8M0", {8}, 8);
  checkDamaged(head.text() + data,
               "tensor 'n' has dtype F8_E8M0; versions have F64, I64, U64, F32, I32, U32, F16, BF16, I16, "
               "U16, I8, U8, "
               "F8_E4M3, F8_E5M2, BOOL");
}

TEST_CASE("memory that the machine does not have is an error") {
  const auto memory = allocateVersion(UINT64_MAX / 4);
  REQUIRE_FALSE(memory.ok());
  CHECK(memory.error().code == ErrorCode::overloaded);
}

TEST_CASE("a version by a patch of an earlier one, which stays as it is") {
  const auto base = verify(fileOf(metadata()));
  PSD_REQUIRE_OK(base);
  const std::string data = "twelve bytesTEN bytes.";
  Metadata next = metadata();
  next["psd.version"] = "8";
  next["psd.step"] = "41";
  next["psd.crc32c"] = crcOf(data.substr(0, 12)) + " " + crcOf(data.substr(12));
  const std::string file = fileOf(next, kModel, data);
  const PublishedVersion info{8, 0x1a2b, 41, "2026-11-29T12:00:01Z", VersionMoment::snapshot, file.size()};
  std::vector<std::byte> patch;
  std::vector<ContentSum> sums = base->sums;
  const std::span<const std::byte> before(base->file.get(), base->info.bytes);
  PSD_REQUIRE_OK(makeVersionPatch(before, std::as_bytes(std::span(file)), sums, appendingTo(patch)));
  const auto patched = patchVersion(info, *base, patch);
  PSD_REQUIRE_OK(patched);
  CHECK(std::string_view(reinterpret_cast<const char*>(patched->file.get()), info.bytes) == file);
  CHECK(std::memcmp(base->file.get(), fileOf(metadata()).data(), base->info.bytes) == 0);
  CHECK(patched->received == patch.size());
  CHECK(patched->sums == sums);

  CHECK(patchVersion(info, *patched, patch).error().code == ErrorCode::modelMismatch);  // another base
  PublishedVersion other = info;
  other.step = 42;
  CHECK(patchVersion(other, *base, patch).error().code == ErrorCode::modelMismatch);
  FetchedVersion differs = *base;  // its bytes are not what its sums say
  differs.sums[0].first++;
  CHECK(patchVersion(info, differs, patch).message() ==
        "the patch from version 7 to version 8: tensor 'a' differs from its sum");
  for (size_t at = 0; at < patch.size(); at++) {
    std::vector<std::byte> damaged = patch;
    damaged[at] ^= std::byte{1};
    CHECK_FALSE(patchVersion(info, *base, damaged).ok());
  }
}

}  // namespace psd::client_received_version_test

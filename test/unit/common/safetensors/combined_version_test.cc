#include "common/safetensors/combined_version.h"

#include <cstring>
#include <string>
#include <vector>

#include "common/checksum/crc32c.h"
#include "common/plan/model_partitions.h"
#include "test/support/catch.h"

namespace psd::combined_version_test {
namespace {

const ModelSpec kModel{"m",
                       {{"embed", DType::f32, {96, 16}},
                        {"scale", DType::bf16, {}},
                        {"w", DType::f32, {48, 32}},
                        {"b", DType::bf16, {3}}}};

VersionInfo infoOf(uint64_t number, uint64_t id, uint32_t part, uint32_t parts, uint64_t history = 5) {
  return {.number = number,
          .history = history + part,
          .step = number + part,
          .created = "2026-11-29T12:00:00Z",
          .moment = VersionMoment::round,
          .bytes = 100,
          .part = part,
          .parts = parts,
          .momentId = id};
}

/// The file of a part whose values are a piece of `values`, those of the whole model.
std::vector<std::byte> fileOf(const ModelSpec& part, const VersionInfo& info,
                              std::span<const std::byte> values) {
  const auto tensors = safetensorsEntries(part);
  std::vector<uint32_t> checksums;
  for (const auto& tensor : tensors) {
    checksums.push_back(crc32c(values.subspan(tensor.begin, tensor.end - tensor.begin)));
  }
  SafetensorsHead head;
  head.addMetadata(versionMetadata(info, checksums));
  for (const auto& tensor : tensors) head.add(tensor);
  const std::string text = head.text(1024);
  std::vector<std::byte> file(text.size());
  std::memcpy(file.data(), text.data(), text.size());
  file.insert(file.end(), values.begin(), values.end());
  return file;
}

/// The model's values, all different, and its parts at `daemons` daemons.
struct Divided {
  explicit Divided(uint32_t daemons, uint64_t number = 12, uint64_t id = 99) {
    values.resize(safetensorsEntries(kModel).back().end);
    for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<std::byte>(i * 7 + i / 256);
    const auto partitions = partitionModel(kModel, daemons);
    PSD_REQUIRE_OK(partitions);
    size_t at = 0;
    for (uint32_t i = 0; i < daemons; i++) {
      const ModelSpec& part = (*partitions)[i].spec;
      const size_t bytes = safetensorsEntries(part).back().end;
      files.push_back(fileOf(part, infoOf(number, id, i, daemons), std::span(values).subspan(at, bytes)));
      at += bytes;
    }
    REQUIRE(at == values.size());
  }
  std::vector<std::span<const std::byte>> spans() const { return {files.begin(), files.end()}; }

  std::vector<std::byte> values;
  std::vector<std::vector<std::byte>> files;
};

TEST_CASE("Combined version: the parts make the file of the whole model") {
  for (const uint32_t daemons : {1U, 2U, 3U, 5U}) {
    const Divided divided(daemons);
    const auto whole = WholeVersion::join(divided.spans());
    PSD_REQUIRE_OK(whole);
    std::vector<std::byte> file(whole->info().bytes);
    whole->writeTo(file);
    const auto verified = verifyVersion(file, 12, whole->info().history);
    PSD_REQUIRE_OK(verified);
    CHECK(verified->info.parts == 0);
    CHECK(verified->info.step == 12);
    REQUIRE(verified->tensors.size() == kModel.tensors.size());
    for (size_t i = 0; i < kModel.tensors.size(); i++) {
      CHECK(verified->tensors[i].name == kModel.tensors[i].name);
      CHECK(verified->tensors[i].shape == kModel.tensors[i].shape);
    }
    CHECK(std::ranges::equal(std::span(file).subspan(verified->dataBegin), divided.values));
    const std::string text(reinterpret_cast<const char*>(file.data()), verified->dataBegin);
    CHECK(text.find("\"psd.parts\":\"0000000000000005") != std::string::npos);
  }
}

TEST_CASE("Combined version: parts of different moments are refused") {
  const Divided one(2), other(2, 12, 100), later(2, 13);
  const auto refused = [](const std::vector<std::byte>& first, const std::vector<std::byte>& second) {
    const auto whole = WholeVersion::join({first, second});
    REQUIRE_FALSE(whole.ok());
    return whole.error().code == ErrorCode::modelMismatch;
  };
  CHECK(refused(one.files[0], other.files[1]));
  CHECK(refused(one.files[0], later.files[1]));
  CHECK(refused(one.files[1], one.files[0]));
  CHECK(refused(one.files[0], one.files[0]));
  CHECK_FALSE(WholeVersion::join({one.files[0]}).ok());
  CHECK(refused(Divided(3).files[0], one.files[1]));
}

TEST_CASE("Combined version: parts of one moment that make no model are refused for good") {
  const auto partitions = partitionModel({"m", {{"w", DType::f32, {96, 16}}}}, 2);
  PSD_REQUIRE_OK(partitions);
  const auto partOf = [&](uint32_t index, const TensorSpec& tensor) {
    ModelSpec part = partitions->at(index).spec;
    part.tensors = {tensor};
    const std::vector<std::byte> values(safetensorsEntries(part).back().end);
    return fileOf(part, infoOf(12, 99, index, 2), values);
  };
  const auto first = partOf(0, partitions->at(0).spec.tensors.front());
  const auto refused = [&](const TensorSpec& tensor) {
    const auto second = partOf(1, tensor);
    const auto whole = WholeVersion::join({first, second});
    REQUIRE_FALSE(whole.ok());
    CHECK(whole.error().code == ErrorCode::invalidArgument);
    return whole.message();
  };
  TensorSpec rounded = partitions->at(1).spec.tensors.front(), missing = rounded;
  rounded.dtype = DType::bf16;
  missing.name = "other[3:9]";
  CHECK(refused(rounded).ends_with("has different dtypes at the daemons: give all the same publish.as"));
  CHECK(refused(missing).starts_with("the parts of version 12 are not those of one model: "));
}

TEST_CASE("Combined version: a version exists once all daemons have its part of one moment") {
  const auto numbers = [](const std::vector<std::vector<VersionInfo>>& lists) {
    std::vector<uint64_t> found;
    for (const VersionInfo& version : commonVersions(lists)) found.push_back(version.number);
    return found;
  };
  using Numbers = std::vector<uint64_t>;
  CHECK(numbers({{infoOf(1, 1, 0, 2), infoOf(2, 2, 0, 2)}, {infoOf(2, 2, 1, 2), infoOf(3, 3, 1, 2)}}) ==
        Numbers{2});
  CHECK(numbers({{infoOf(2, 2, 0, 2)}, {infoOf(2, 7, 1, 2)}}).empty());  // one was made again
  CHECK(numbers({{infoOf(2, 2, 0, 2)}, {}}).empty());
  CHECK(numbers({{infoOf(2, 2, 0, 2)}, {infoOf(2, 2, 0, 2)}}).empty());  // the same daemon twice
  CHECK(numbers({{infoOf(2, 2, 0, 3)}, {infoOf(2, 2, 1, 3)}}).empty());
  const std::vector<std::vector<VersionInfo>> lists{{infoOf(4, 2, 0, 2)}, {infoOf(4, 2, 1, 2)}};
  const VersionInfo whole = commonVersions(lists).front();
  CHECK((whole.bytes == 200 && whole.step == 4 && whole.parts == 0));
}

/// The file of a whole version of kModel, as one daemon publishes it.
std::vector<std::byte> wholeFile() {
  std::vector<std::byte> values(safetensorsEntries(kModel).back().end);
  for (size_t i = 0; i < values.size(); i++) values[i] = static_cast<std::byte>(i * 11 + i / 256);
  VersionInfo info = infoOf(12, 0, 0, 0, 0xabc);
  info.shardVersions = {12, 13};
  return fileOf(kModel, info, values);
}

std::vector<ModelSpec> partitionsOf(const ModelSpec& model, uint32_t daemons) {
  const auto partitions = partitionModel(model, daemons);
  PSD_REQUIRE_OK(partitions);
  std::vector<ModelSpec> specs;
  for (const ModelPartition& partition : *partitions) specs.push_back(partition.spec);
  return specs;
}

std::vector<std::vector<std::byte>> splitFiles(std::span<const std::byte> file, const ModelSpec& model,
                                               uint32_t daemons, uint64_t seed = 7) {
  const auto split = SplitVersion::split(file, partitionsOf(model, daemons), seed);
  PSD_REQUIRE_OK(split);
  std::vector<std::vector<std::byte>> files;
  for (const SplitVersion::Part& part : split->parts()) {
    const auto head = std::as_bytes(std::span(part.head));
    files.emplace_back(head.begin(), head.end());
    files.back().insert(files.back().end(), part.values.begin(), part.values.end());
  }
  return files;
}

std::vector<std::byte> joined(const std::vector<std::vector<std::byte>>& files) {
  const auto whole = WholeVersion::join({files.begin(), files.end()});
  PSD_REQUIRE_OK(whole);
  std::vector<std::byte> file(whole->info().bytes);
  whole->writeTo(file);
  return file;
}

TEST_CASE("Combined version: a version that is split and joined has the same bytes") {
  const std::vector<std::byte> file = wholeFile();
  for (const uint32_t daemons : {2U, 3U, 7U}) {  // there are four tensors
    CAPTURE(daemons);
    const auto files = splitFiles(file, kModel, daemons);
    std::vector<VersionInfo> infos;
    for (uint32_t i = 0; i < daemons; i++) {
      const auto part = verifyVersion(files[i], 12, partHistory(0xabc, i, 7));
      PSD_REQUIRE_OK(part);
      CHECK((part->info.part == i && part->info.parts == daemons && part->info.wholeHistory == 0xabc));
      CHECK(part->info.shardVersions.empty());
      infos.push_back(part->info);
      CHECK(infos.back().momentId == infos.front().momentId);
    }
    CHECK(infos.front().momentId != 0);
    CHECK(wholeHistory(infos) == 0xabc);
    CHECK(joined(files) == file);
    const VersionInfo whole = WholeVersion::join({files.begin(), files.end()})->info();
    CHECK((whole.number == 12 && whole.history == 0xabc && whole.step == 12 && whole.parts == 0 &&
           whole.wholeHistory == 0 && whole.moment == VersionMoment::round));
    // Once more, for another number of daemons.
    CHECK(joined(splitFiles(joined(files), kModel, 5, 8)) == file);
  }
}

TEST_CASE("Combined version: parts of several daemons can be split for others") {
  const std::vector<std::byte> file = joined(Divided(3).files);
  CHECK(joined(splitFiles(file, kModel, 2)) == file);
}

TEST_CASE("Combined version: a version whose dtypes are not those of the model is split") {
  ModelSpec rounded = kModel;
  for (TensorSpec& tensor : rounded.tensors) tensor.dtype = DType::bf16;
  const std::vector<std::byte> values(safetensorsEntries(rounded).back().end, std::byte{3});
  const auto file = fileOf(rounded, infoOf(12, 0, 0, 0), values);
  CHECK(joined(splitFiles(file, kModel, 3)) == file);
}

TEST_CASE("Combined version: a header of the whole version that does not fit is damage") {
  const auto files = splitFiles(wholeFile(), kModel, 2);
  const auto broken = [&](const std::vector<std::vector<std::byte>>& parts) {
    const auto whole = WholeVersion::join({parts.begin(), parts.end()});
    REQUIRE_FALSE(whole.ok());
    CHECK(whole.error().code == ErrorCode::io);
    return whole.message();
  };
  const auto replaced = [](std::vector<std::byte> file, std::string_view from, std::string_view to) {
    std::string text(reinterpret_cast<const char*>(file.data()), file.size());
    const size_t whole = text.find("\"psd.whole\":");
    REQUIRE(whole != text.npos);
    const size_t at = text.find(from, whole);
    REQUIRE(at != text.npos);
    REQUIRE(from.size() == to.size());
    std::memcpy(file.data() + at, to.data(), to.size());
    return file;
  };
  auto one = files;
  one[1] = replaced(files[1], "12:00:00Z", "12:00:01Z");
  CHECK(broken(one) == "the parts of version 12 name different headers before they were cut (psd.whole)");
  auto both = files;
  for (auto& file : both) file = replaced(file, "embed", "other");
  CHECK(broken(both).ends_with("is damaged: it has other tensors"));
  both = files;
  for (auto& file : both) file = replaced(file, "\\\"psd.version\\\":\\\"12", "\\\"psd.version\\\":\\\"13");
  CHECK(broken(both).ends_with("is damaged: it is of another version"));
}

TEST_CASE("Published version: its header is limited as those of the safetensors format are") {
  std::vector<std::byte> file(sizeof(uint64_t) + kVersionHeaderBytesMax + 1);
  uint64_t bytes = kVersionHeaderBytesMax + 1;
  std::memcpy(file.data(), &bytes, sizeof bytes);
  const auto refused = versionHeaderText(file);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find("its header has 100000001 bytes; the limit is 100000000") !=
        std::string::npos);
  bytes--;
  std::memcpy(file.data(), &bytes, sizeof bytes);
  CHECK(versionHeaderText(file).ok());
}

TEST_CASE("Combined version: a version of another model is not split") {
  ModelSpec other = kModel;
  other.tensors[1].name = "other";
  const auto split = SplitVersion::split(wholeFile(), partitionsOf(other, 2), 7);
  REQUIRE_FALSE(split.ok());
  CHECK(split.error().code == ErrorCode::modelMismatch);
}

TEST_CASE("Combined version: the whole history ends with that of any part") {
  std::vector<VersionInfo> parts = {infoOf(1, 1, 0, 2), infoOf(1, 1, 1, 2)};
  const uint64_t combined = wholeHistory(parts);
  CHECK(combined == combinedHistory(std::vector<uint64_t>{5, 6}));
  parts[0].wholeHistory = parts[1].wholeHistory = 9;
  CHECK(wholeHistory(parts) == 9);
  const std::vector<std::vector<VersionInfo>> lists{{parts[0]}, {parts[1]}};
  CHECK(commonVersions(lists).front().history == 9);
  parts[1].wholeHistory = 0;
  CHECK(wholeHistory(parts) == combined);
}

TEST_CASE("Combined version: its history changes with that of any part") {
  const auto of = [](std::vector<uint64_t> histories) { return combinedHistory(histories); };
  CHECK(of({1, 2}) == of({1, 2}));
  CHECK(of({1, 2}) != of({2, 1}));
  CHECK(of({1, 2}) != of({1, 3}));
  CHECK(of({1, 2}) != of({3, 2}));
  CHECK(of({1}) != of({1, 0}));
}

}  // namespace
}  // namespace psd::combined_version_test

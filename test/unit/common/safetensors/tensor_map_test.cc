#include "common/safetensors/tensor_map.h"

#include <algorithm>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/support/random.h"

namespace psd::tensor_map_test {
namespace {

using testing::Random;
using Bytes = std::vector<std::byte>;

/// Tensors of a file, and its data: byte i is i % 251.
struct File {
  std::vector<SafetensorsEntry> entries;
  Bytes data;

  void add(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape) {
    uint64_t bytes = safetensorsElementBytes(dtype);
    for (const uint64_t extent : shape) bytes *= extent;
    entries.push_back({name, dtype, shape, data.size(), data.size() + bytes});
    for (uint64_t i = 0; i < bytes; i++) data.push_back(static_cast<std::byte>(data.size() % 251));
  }
};

File attention() {
  File file;
  for (int layer = 0; layer < 12; layer++) {
    for (const char* which : {"q", "k", "v"})
      file.add(fmt::format("layers.{}.{}.weight", layer, which), "F32", {2, 3});
  }
  file.add("head", "BF16", {4, 6});
  return file;
}

Result<std::vector<MappedTensor>> made(const File& file, std::string_view json) {
  PSD_ASSIGN_OR_RETURN(const TensorMap map, TensorMap::parse(json, "map.json"));
  return map.apply(file.entries);
}

Bytes bytesOf(const MappedTensor& tensor, const Bytes& data) {
  Bytes all;
  PSD_REQUIRE_OK(tensor.forEach(data, [&](std::span<const std::byte> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
    return Status();
  }));
  CHECK(all.size() == tensor.entry.end - tensor.entry.begin);
  return all;
}

Bytes part(const Bytes& data, uint64_t begin, uint64_t end) {
  return {data.begin() + static_cast<ptrdiff_t>(begin), data.begin() + static_cast<ptrdiff_t>(end)};
}

const MappedTensor& named(const std::vector<MappedTensor>& tensors, std::string_view name) {
  const auto found =
      std::ranges::find(tensors, name, [](const MappedTensor& each) { return each.entry.name; });
  REQUIRE(found != tensors.end());
  return *found;
}

std::string errorOf(const File& file, std::string_view json) {
  const auto tensors = made(file, json);
  REQUIRE(!tensors.ok());
  CHECK(tensors.error().code == ErrorCode::invalidArgument);
  return tensors.message();
}

TEST_CASE("Tensor map: fused tensors of each layer") {
  const File file = attention();
  const auto tensors = made(file, R"({"tensors": {"layers.{n}.qkv.weight":
      ["layers.{n}.q.weight", "layers.{n}.k.weight", "layers.{n}.v.weight"]}})");
  PSD_REQUIRE_OK(tensors);
  REQUIRE(tensors->size() == 13);
  uint64_t at = 0;
  for (int layer = 0; layer < 12; layer++) {
    const MappedTensor& fused = (*tensors)[static_cast<size_t>(layer)];
    CHECK(fused.entry.name == fmt::format("layers.{}.qkv.weight", layer));
    CHECK(fused.entry.shape == std::vector<uint64_t>{6, 3});
    CHECK(fused.entry.begin == at);
    at = fused.entry.end;
    CHECK(bytesOf(fused, file.data) == part(file.data, fused.entry.begin, fused.entry.end));
  }
  CHECK(tensors->back().entry.name == "head");
  CHECK(tensors->back().entry.end == file.data.size());
}

TEST_CASE("Tensor map: renames, slices and what is left out") {
  const File file = attention();
  const auto tensors = made(file, R"({"others": "drop", "tensors": {
      "renamed": "head",
      "rows": {"from": "head", "begin": 1, "end": 3},
      "columns": {"from": "head", "dim": 1, "begin": 4},
      "beside": {"concat": ["layers.0.q.weight", {"from": "layers.0.k.weight", "dim": 1, "end": 1}], "dim": 1}}})");
  PSD_REQUIRE_OK(tensors);
  REQUIRE(tensors->size() == 4);
  const uint64_t head = file.entries.back().begin;
  CHECK(bytesOf(named(*tensors, "renamed"), file.data) == part(file.data, head, head + 48));
  CHECK(bytesOf(named(*tensors, "rows"), file.data) == part(file.data, head + 12, head + 36));
  const MappedTensor& columns = named(*tensors, "columns");
  CHECK(columns.entry.shape == std::vector<uint64_t>{4, 2});
  Bytes expected;
  for (uint64_t row = 0; row < 4; row++) {
    for (const std::byte each : part(file.data, head + 12 * row + 8, head + 12 * row + 12))
      expected.push_back(each);
  }
  CHECK(bytesOf(columns, file.data) == expected);
  const MappedTensor& beside = named(*tensors, "beside");
  CHECK(beside.entry.shape == std::vector<uint64_t>{2, 4});
  expected.clear();
  for (uint64_t row = 0; row < 2; row++) {
    for (const std::byte each : part(file.data, 12 * row, 12 * row + 12)) expected.push_back(each);
    for (const std::byte each : part(file.data, 24 + 12 * row, 24 + 12 * row + 4)) expected.push_back(each);
  }
  CHECK(bytesOf(beside, file.data) == expected);
  CHECK(tensors->front().entry.name == "beside");  // larger elements first: all stay aligned
}

TEST_CASE("Tensor map: slices along any dimension, concatenated again, are the tensor") {
  for (uint64_t seed = 0; seed < 300; seed++) {
    CAPTURE(seed);
    Random random(seed);
    File file;
    file.add("before", "F16", {random.between(1, 5)});
    std::vector<uint64_t> shape(random.between(1, 4));
    for (uint64_t& extent : shape) extent = random.between(1, 9);
    file.add("x", random.oneIn(2) ? "F32" : "BF16", shape);
    const size_t dim = random.below(shape.size());
    std::string slices;
    for (uint64_t begin = 0; begin < shape[dim];) {
      const uint64_t end = random.between(begin + 1, shape[dim]);
      slices += fmt::format(R"({}{{"from": "x", "dim": {}, "begin": {}, "end": {}}})", begin == 0 ? "" : ", ",
                            dim, begin, end);
      begin = end;
    }
    const auto tensors =
        made(file, fmt::format(R"({{"tensors": {{"y": {{"concat": [{}], "dim": {}}}}}}})", slices, dim));
    PSD_REQUIRE_OK(tensors);
    const MappedTensor& again = named(*tensors, "y");
    CHECK(again.entry.shape == shape);
    CHECK(bytesOf(again, file.data) == part(file.data, file.entries[1].begin, file.entries[1].end));
  }
}

TEST_CASE("Tensor map: a concatenation of slices along other dimensions has the elements of each") {
  for (uint64_t seed = 0; seed < 300; seed++) {
    CAPTURE(seed);
    Random random(seed);
    std::vector<uint64_t> shape{random.between(2, 6), random.between(2, 6), random.between(2, 6)};
    File file;
    file.add("x", "U8", shape);
    std::iota(reinterpret_cast<uint8_t*>(file.data.data()),
              reinterpret_cast<uint8_t*>(file.data.data()) + file.data.size(), 0);
    const size_t sliced = random.below(3), joined = random.below(3);
    const uint64_t begin = random.below(shape[sliced]), end = random.between(begin + 1, shape[sliced]);
    const auto tensors = made(
        file,
        fmt::format(
            R"({{"tensors": {{"y": {{"dim": {1}, "concat": [{{"from": "x", "dim": {0}, "begin": {2}, "end": {3}}}, {{"from": "x", "dim": {0}, "begin": {2}, "end": {3}}}]}}}}}})",
            sliced, joined, begin, end));
    PSD_REQUIRE_OK(tensors);
    const MappedTensor& twice = named(*tensors, "y");
    const Bytes bytes = bytesOf(twice, file.data);
    std::vector<uint64_t> of = shape;
    of[sliced] = end - begin;
    const uint64_t half = of[joined];
    of[joined] *= 2;
    REQUIRE(twice.entry.shape == of);
    size_t at = 0;
    for (uint64_t i = 0; i < of[0]; i++) {
      for (uint64_t j = 0; j < of[1]; j++) {
        for (uint64_t k = 0; k < of[2]; k++) {
          std::vector<uint64_t> place{i, j, k};
          place[joined] %= half;
          place[sliced] += begin;
          REQUIRE(bytes[at++] == file.data[(place[0] * shape[1] + place[1]) * shape[2] + place[2]]);
        }
      }
    }
  }
}

TEST_CASE("Tensor map: large runs are passed without a copy") {
  File file;
  file.add("x", "F32", {100, 100});
  const auto tensors = made(file, R"({"tensors": {"y": ["x", "x"]}})");
  PSD_REQUIRE_OK(tensors);
  size_t passed = 0;
  PSD_REQUIRE_OK(tensors->front().forEach(file.data, [&](std::span<const std::byte> bytes) {
    CHECK(bytes.data() == file.data.data());
    passed++;
    return Status();
  }));
  CHECK(passed == 2);
}

TEST_CASE("Tensor map: a map that is wrong names the place") {
  const File file = attention();
  const auto says = [&](std::string_view json, const std::string& text) {
    CAPTURE(json);
    CHECK_THAT(errorOf(file, json), Catch::Matchers::Contains(text));
    CHECK_THAT(errorOf(file, json), Catch::Matchers::StartsWith("map.json"));
  };
  says("{", "map.json");
  says("[]", "expected an object with the key tensors");
  says("{}", "tensors: the map names no tensor");
  says(R"({"tensor": {}})", "tensor: unknown key");
  says(R"({"tensors": []})", "tensors: expected an object, got a list");
  says(R"({"others": "some", "tensors": {"a": "head"}})", "others: expected \"keep\" or \"drop\"");
  says(R"({"tensors": {"a": "head", "a": "head"}})", "a");
  says(R"({"tensors": {"a": 3}})", R"(tensors["a"]: expected a name)");
  says(R"({"tensors": {"a": []}})", R"(tensors["a"]: the list is empty)");
  says(R"({"tensors": {"a": [{"form": "head"}]}})", R"(tensors["a"][0].form: unknown key)");
  says(R"({"tensors": {"a": {"dim": 1}}})", R"(tensors["a"]: it has no key from)");
  says(R"({"tensors": {"a": {"from": "head", "dim": 1}}})",
       R"(tensors["a"].dim: a slice along dim also needs begin or end)");
  says(R"({"tensors": {"a": {"from": "head", "end": -1}}})", R"(tensors["a"].end: expected a whole number)");
  says(R"({"tensors": {"a": {"from": "head", "begin": 2, "end": 2}}})",
       R"(tensors["a"]: begin is not below end)");
  says(R"({"tensors": {"a": {"concat": "head"}}})", R"(tensors["a"].concat: expected a list)");
  says(R"({"tensors": {"a": {"concat": ["head"], "axis": 1}}})", R"(tensors["a"].axis: unknown key)");
  says(R"({"tensors": {"__metadata__": "head"}})", "no tensor can have this name");
  says(R"({"tensors": {"": "head"}})", "is empty");
  says(R"({"tensors": {"a.{n": "head"}})", "a placeholder is");
  says(R"({"tensors": {"a.n}": "head"}})", "'}' without '{'");
  says(R"({"tensors": {"a.{n}0": "b.{n}0"}})", "a digit follows a placeholder");
  says(R"({"tensors": {"a.{n}{m}": "b.{n}{m}"}})", "no text between");
  says(R"({"tensors": {"a.{n}": "b.{m}"}})", "has other placeholders than the target");
  says(R"({"tensors": {"a.{n}": "head"}})", "no tensor that it is made of has its placeholders");
}

TEST_CASE("Tensor map: a map that does not fit the tensors names the tensor") {
  const File file = attention();
  const auto says = [&](std::string_view rule, const std::string& text) {
    CAPTURE(rule);
    const std::string error = errorOf(file, fmt::format(R"({{"tensors": {{{}}}}})", rule));
    CHECK_THAT(error, Catch::Matchers::Contains(text));
    CHECK(error.find('\n') == std::string::npos);
  };
  says(R"("a": "tail")", R"(map.json: tensors["a"]: tensor 'a': there is no tensor 'tail')");
  says(R"("a.{n}": "b.{n}")", "'b.{n}' is the name of no tensor");
  says(R"("a.{n}": ["layers.{n}.q.weight", "layers.{n}.w.weight"])",
       "tensor 'a.0': there is no tensor 'layers.0.w.weight'");
  says(R"("a": ["head", "layers.0.q.weight"])", "layers.0.q.weight F32[2,3] is not of the dtype BF16");
  says(R"("a": ["head", {"from": "head", "dim": 1, "end": 2}])",
       "head BF16[4,2] does not fit a BF16[4,6] before it, along dimension 0");
  says(R"("a": {"concat": ["head", "head"], "dim": 2})", "head BF16[4,6] has no dimension 2");
  says(R"("a": {"from": "head", "dim": 2, "end": 1})", "head BF16[4,6] has no dimension 2");
  says(R"("a": {"from": "head", "begin": 2, "end": 5})", "has no elements 2 to 5 of dimension 0");
  says(R"("a": {"from": "head", "begin": 4})", "has no elements 4 to 4");
  says(R"("layers.0.q.weight": "head")", "another one of this name");
  says(R"("layers.{n}.x": "layers.{n}.q.weight", "layers.3.x": "head")",
       "tensor 'layers.3.x': another rule also makes it");
}

TEST_CASE("Tensor map: its checksum ignores comments and spaces") {
  const auto one = TensorMap::parse(R"({"tensors": {"a": "b"}})", "x"),
             same = TensorMap::parse("{ // a comment\n \"tensors\":{\"a\" :\"b\"}}", "y"),
             other = TensorMap::parse(R"({"tensors": {"a": "c"}})", "x");
  PSD_REQUIRE_OK(one);
  PSD_REQUIRE_OK(same);
  PSD_REQUIRE_OK(other);
  CHECK(one->checksum() == same->checksum());
  CHECK(one->checksum() != other->checksum());
}

TEST_CASE("Tensor map: a file is read, and named in errors") {
  testing::MemoryEnv env;
  CHECK(!TensorMap::read(env, "/map.json").ok());
  env.put("/map.json", R"({"tensors": {"a": {"from": 1}}})");
  const auto map = TensorMap::read(env, "/map.json");
  REQUIRE(!map.ok());
  CHECK(map.message() == R"('/map.json': tensors["a"].from: expected a name, got 1)");
}

}  // namespace
}  // namespace psd::tensor_map_test

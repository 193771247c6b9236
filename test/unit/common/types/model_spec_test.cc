#include "common/types/model_spec.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "test/support/catch.h"

namespace psd::types_model_spec_test {
namespace {

using Shape = std::vector<uint64_t>;

ModelSpec modelOf(std::vector<TensorSpec> tensors, std::string name = "model") {
  return {std::move(name), std::move(tensors)};
}

std::string refusalOf(std::vector<TensorSpec> tensors) {
  Status status = validateModel(modelOf(std::move(tensors)));
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::invalidArgument);
  return status.message();
}

TEST_CASE("a tensor's element count is the product of its shape") {
  CHECK(TensorSpec{"scalar", DType::f32, {}}.elementCount() == 1);
  CHECK(TensorSpec{"vector", DType::f32, {7}}.elementCount() == 7);
  CHECK(TensorSpec{"matrix", DType::f32, {128, 9216}}.elementCount() == 1'179'648);
  CHECK(TensorSpec{"large", DType::f32, {1ull << 20, 1ull << 20}}.elementCount() == 1ull << 40);
}

TEST_CASE("a tensor's text has its name, type and shape") {
  CHECK(TensorSpec{"fc1.weight", DType::f32, {128, 9216}}.toString() == "fc1.weight f32[128,9216]");
  CHECK(TensorSpec{"scale", DType::f32, {}}.toString() == "scale f32[]");
}

TEST_CASE("dtypes go by name") {
  CHECK(dtypeName(DType::f32) == "f32");
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Result<DType> known = parseDType(dtypeName(dtype));
    PSD_REQUIRE_OK(known);
    CHECK(*known == dtype);
  }
  CHECK(dtypeName(DType::bf16) == "bf16");
  Result<DType> unknown = parseDType("f64");
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.message() == "unknown dtype 'f64'; a tensor is f32, bf16 or f16");
  CHECK_FALSE(parseDType("u64").ok());
}

TEST_CASE("the name that safetensors files reserve is rejected for tensors and tables") {
  const std::string why =
      " '__metadata__' has the name under which safetensors files keep their metadata; rename it";
  CHECK(refusalOf({{"w", DType::f32, {2}}, {"__metadata__", DType::f32, {2}}}) == "tensor" + why);
  ModelSpec model = modelOf({{"w", DType::f32, {2}}});
  model.tables = {{"__metadata__", 4, {}}};
  CHECK(validateModel(model).message() == "table" + why);
}

TEST_CASE("the parameter count leaves layout padding out") {
  CHECK(
      modelOf({{"a", DType::f32, {3}}, {"b", DType::f32, {5, 2}}, {"c", DType::f32, {}}}).parameterCount() ==
      14);
}

TEST_CASE("the signature matches the worked example in docs/reference/protocol.md") {
  ModelSpec model = modelOf({{"w", DType::f32, {2, 3}}, {"b", DType::f32, {3}}});
  CHECK(model.signature() == 0x2a51ff89c8fe4119);
  model.tables = {{"item", 4, {RowInitial::Kind::uniform, 0.5f, 7}}};
  CHECK(model.signature() == 0x2521571eb9d51a58);
}

TEST_CASE("the signature depends on names, shapes and order, and nothing else") {
  const ModelSpec model = modelOf({{"w", DType::f32, {2, 3}}, {"b", DType::f32, {3}}});
  CHECK(model.signature() == modelOf(model.tensors, "another name").signature());
  const std::vector<std::vector<TensorSpec>> all = {
      model.tensors,
      {{"b", DType::f32, {3}}, {"w", DType::f32, {2, 3}}},  // another order
      {{"w", DType::f32, {3, 2}}, {"b", DType::f32, {3}}},  // another shape of as many elements
      {{"w", DType::f32, {6}}, {"b", DType::f32, {3}}},
      {{"w", DType::f32, {2, 3}}, {"c", DType::f32, {3}}},  // another name
      {{"w", DType::f32, {2, 3}}},                          // one less
      {{"w", DType::f32, {2, 3}}, {"b", DType::f32, {3}}, {"x", DType::f32, {}}},
      {{"wb", DType::f32, {2, 3}}, {"", DType::f32, {3}}},  // the same letters, cut elsewhere
  };
  std::set<uint64_t> signatures;
  for (const auto& tensors : all) signatures.insert(modelOf(tensors).signature());
  CHECK(signatures.size() == all.size());
}

TEST_CASE("the signature is the same on every machine and in every version") {
  // FNV-1a over length and bytes of the name, dtype, rank and sizes, numbers as 8 little endian bytes.
  auto fnv = [](const std::string& bytes) {
    uint64_t hash = 14695981039346656037ull;
    for (unsigned char byte : bytes) hash = (hash ^ byte) * 1099511628211ull;
    return hash;
  };
  auto number = [](char value) { return std::string(1, value) + std::string(7, '\0'); };
  CHECK(modelOf({{"w", DType::f32, {2, 3}}}).signature() ==
        fnv(number(1) + "w" + "f32" + number(2) + number(2) + number(3)));
  CHECK(modelOf({}).signature() == fnv(""));
}

TEST_CASE("a valid model is accepted") {
  PSD_REQUIRE_OK(validateModel(modelOf({{"scalar", DType::f32, {}}})));
  PSD_REQUIRE_OK(validateModel(modelOf({{"!~", DType::f32, {1}}, {"B", DType::f32, {2}}})));
  PSD_REQUIRE_OK(validateModel(modelOf({{"whole", DType::f32, {kModelElementsMax}}})));
}

TEST_CASE("an invalid model is rejected with the tensor's name") {
  CHECK(refusalOf({}) == "the model has neither tensors nor tables");
  CHECK(refusalOf({{"", DType::f32, {1}}}) == "a tensor of the model has an empty name");
  const std::string other = " has a name with a character that is not visible ASCII: ";
  CHECK(refusalOf({{"two words", DType::f32, {1}}}) == "tensor 'two words'" + other + "a space at byte 3");
  const std::string longest(kTensorNameBytesMax, 'x'), longer = longest + "x", huge(2 << 20, '\n');
  PSD_REQUIRE_OK(validateModel(modelOf({{longest, DType::f32, {1}}})));
  CHECK(refusalOf({{longer, DType::f32, {1}}}) ==
        "tensor '" + longer.substr(0, 200) + "...' has a name of 1025 bytes; the limit is 1024");
  CHECK(refusalOf({{huge, DType::f32, {1}}}) ==
        "tensor '" + std::string(200, '?') + "...' has a name of 2097152 bytes; the limit is 1024");
  CHECK(refusalOf({{longest, DType::f32, {0}}}).size() < 300);
  CHECK(refusalOf({{"line\n", DType::f32, {1}}}) == "tensor 'line?'" + other + "0x0a at byte 4");
  CHECK(refusalOf({{"caf\xc3\xa9", DType::f32, {1}}}) == "tensor 'caf\?\?'" + other + "0xc3 at byte 3");
  CHECK(refusalOf({{std::string("nul\0", 4), DType::f32, {1}}}) ==
        "tensor 'nul?'" + other + "0x00 at byte 3");
  CHECK(refusalOf({{"del\x7f", DType::f32, {1}}}) == "tensor 'del?'" + other + "0x7f at byte 3");
  CHECK(refusalOf({{"w", DType::f32, {1}}, {"b", DType::f32, {1}}, {"w", DType::f32, {2}}}) ==
        "tensor 'w' appears twice in the model");
  CHECK(refusalOf({{"w", DType::f32, {3, 0, 2}}}) == "tensor 'w' has a dimension of size 0");
}

TEST_CASE("invalid tables are rejected with their names") {
  const auto refusalOfTables = [](std::vector<TableSpec> tables) {
    const Status status = validateModel({"model", {{"w", DType::f32, {1}}}, std::move(tables)});
    return status.ok() ? "" : status.message();
  };
  const RowInitial initial;
  CHECK(refusalOfTables({{"a", 1, initial}, {"b", kTableDimMax, initial}}).empty());
  CHECK(refusalOfTables({{"a", 0, initial}}) == "table 'a' has rows of 0 values; the range is 1 to 4096");
  CHECK(refusalOfTables({{"a", kTableDimMax + 1, initial}}) ==
        "table 'a' has rows of 4097 values; the range is 1 to 4096");
  CHECK(refusalOfTables({{"caf\xc3\xa9", 1, initial}}) ==
        "table 'caf\?\?' has a name with a character that is not visible ASCII: 0xc3 at byte 3");
  CHECK(refusalOfTables({{"w", 1, initial}}) == "table 'w' appears twice in the model");
  for (const float scale : {-1.f, NAN, INFINITY}) {
    CHECK(refusalOfTables({{"a", 1, {RowInitial::Kind::uniform, scale, 1}}})
              .find("must be finite and not negative") != std::string::npos);
  }
  std::vector<TableSpec> many;
  for (size_t i = 0; i < kTablesMax; i++) many.push_back({"t" + std::to_string(i), 1, initial});
  CHECK(refusalOfTables(many).empty());
  many.push_back({"last", 1, initial});
  CHECK(refusalOfTables(many) == "the model has 4097 tables; the limit is 4096");
}

TEST_CASE("a model that is too large is rejected even if its size overflows") {
  const std::string tooLarge = "tensor 'w' has more than 2^40 elements";
  CHECK(refusalOf({{"w", DType::f32, {kModelElementsMax + 1}}}) == tooLarge);
  CHECK(refusalOf({{"w", DType::f32, {1ull << 32, 1ull << 32}}}) == tooLarge);  // 2^64 = 0
  CHECK(refusalOf({{"w", DType::f32, {UINT64_MAX, UINT64_MAX}}}) == tooLarge);  // wraps to 1
  CHECK(refusalOf({{"w", DType::f32, Shape(64, 2)}}) == tooLarge);
  CHECK(refusalOf({{"w", DType::f32, {kModelElementsMax}}, {"b", DType::f32, {1}}}) ==
        "the model has more than 2^40 elements");
}

TEST_CASE("the difference of two models names the first tensor that differs") {
  const ModelSpec mine = modelOf({{"w", DType::f32, {2, 3}}, {"b", DType::f32, {3}}});
  auto difference = [&](std::vector<TensorSpec> theirs) {
    return describeDifference(mine, "the daemon", modelOf(std::move(theirs), "other"), "rank 1");
  };
  CHECK(difference(mine.tensors).empty());
  CHECK(difference({{"w", DType::f32, {2, 3}}, {"b", DType::f32, {4}}}) ==
        "tensor 1 is b f32[3] in the daemon, but b f32[4] in rank 1");
  CHECK(difference({{"v", DType::f32, {2, 3}}}) ==
        "tensor 0 is w f32[2,3] in the daemon, but v f32[2,3] in rank 1");
  CHECK(difference({{"w", DType::f32, {2, 3}}}) ==
        "the daemon has 2 tensors and rank 1 has 1; the first only in the daemon is b f32[3]");
  CHECK(difference({{"w", DType::f32, {2, 3}}, {"b", DType::f32, {3}}, {"c", DType::f32, {}}}) ==
        "the daemon has 2 tensors and rank 1 has 3; the first only in rank 1 is c f32[]");
}

TEST_CASE("the difference of two models names the first table that differs, in any of its properties") {
  const TableSpec item{"item", 4, {RowInitial::Kind::uniform, 0.5f, 7}};
  const auto difference = [&](std::vector<TableSpec> theirs) {
    return describeDifference({"mine", {}, {item}}, "the daemon", {"other", {}, std::move(theirs)}, "rank 1");
  };
  CHECK(difference({item}).empty());
  const std::string begin = "table 0 is item rows[4] uniform 0.5 seed 7 in the daemon, but ";
  CHECK(difference({{"item", 5, item.initial}}) == begin + "item rows[5] uniform 0.5 seed 7 in rank 1");
  CHECK(difference({{"user", 4, item.initial}}) == begin + "user rows[4] uniform 0.5 seed 7 in rank 1");
  CHECK(difference({{"item", 4, {RowInitial::Kind::normal, 0.5f, 7}}}) ==
        begin + "item rows[4] normal 0.5 seed 7 in rank 1");
  CHECK(difference({{"item", 4, {RowInitial::Kind::uniform, 0.5f, 8}}}) ==
        begin + "item rows[4] uniform 0.5 seed 8 in rank 1");
  CHECK(difference({{"item", 4, {RowInitial::Kind::zero, 0, 7}}}) == begin + "item rows[4] from 0 in rank 1");
}

}  // namespace
}  // namespace psd::types_model_spec_test

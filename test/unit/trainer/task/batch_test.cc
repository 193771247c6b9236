#include "trainer/task/batch.h"

#include <numeric>

#include "test/support/catch.h"

namespace psd {
namespace {

TEST_CASE("a batch has a tensor of every type for each column, and keeps its memory") {
  const std::vector<ColumnSpec> columns{{"a", ElementType::f32, {2, 3}},
                                        {"b", ElementType::f64, {}},
                                        {"c", ElementType::i32, {1}},
                                        {"d", ElementType::i64, {4}, 10},
                                        {"e", ElementType::u8, {5}}};
  Batch batch;
  batch.reshape(columns, 7);
  CHECK(batch.size() == 7);
  CHECK(batch.values<float>("a").size() == 42);
  CHECK(batch.values<double>("b").size() == 7);
  CHECK(batch.values<int32_t>("c").size() == 7);
  CHECK(batch.values<int64_t>("d").size() == 28);
  CHECK(batch.values<uint8_t>("e").size() == 35);

  const auto values = batch.values<float>("a");
  std::iota(values.begin(), values.end(), 0.f);
  batch.reshape(columns, 3);
  CHECK(batch.values<float>("a").data() == values.data());
  const Batch& constant = batch;
  CHECK(constant.values<float>("a").size() == 18);
  CHECK(constant.values<float>("a")[17] == 17.f);
}

TEST_CASE("a missing column, or one of another type, has no values") {
  Batch batch;
  batch.reshape({{"a", ElementType::i64, {}}}, 2);
  CHECK(batch.values<int64_t>("b").empty());
  CHECK(batch.values<float>("a").empty());
}

TEST_CASE("columns are human-readable") {
  const std::vector<ColumnSpec> columns{{"image", ElementType::f32, {1, 28, 28}},
                                        {"tokens", ElementType::i64, {ColumnSpec::kAny}, 10'000}};
  CHECK(describeColumns(columns) == "image f32[1,28,28], tokens i64[any] below 10000");
}

TEST_CASE("an input accepts a column of its name, type and shape whose numbers are not too large") {
  const ColumnSpec any{"tokens", ElementType::i64, {ColumnSpec::kAny}, 100};
  CHECK(any.takes({"tokens", ElementType::i64, {33}, 100}));
  CHECK(any.takes({"tokens", ElementType::i64, {1}, 3}));
  CHECK_FALSE(any.takes({"tokens", ElementType::i64, {33}, 101}));
  CHECK_FALSE(any.takes({"tokens", ElementType::i64, {33}}));  // may be anything
  CHECK_FALSE(any.takes({"tokens", ElementType::i32, {33}, 100}));
  CHECK_FALSE(any.takes({"tokens", ElementType::i64, {33, 1}, 100}));
  CHECK_FALSE(any.takes({"words", ElementType::i64, {33}, 100}));
  const ColumnSpec fixed{"x", ElementType::f32, {2, 3}};
  CHECK(fixed.takes({"x", ElementType::f32, {2, 3}}));
  CHECK_FALSE(fixed.takes({"x", ElementType::f32, {3, 2}}));
  CHECK_FALSE(fixed.takes({"x", ElementType::f32, {2}}));
}

}  // namespace
}  // namespace psd

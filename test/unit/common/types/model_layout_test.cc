#include "common/types/model_layout.h"

#include "test/support/catch.h"
#include "test/support/random.h"

namespace psd::types_model_layout_test {
namespace {

TEST_CASE("tensors are contiguous, each starts at the grain") {
  const ModelLayout layout({"",
                            {{"scalar", DType::f32, {}},
                             {"exact", DType::f32, {4, 4}},
                             {"long", DType::f32, {17}},
                             {"last", DType::f32, {3}}}});
  REQUIRE(layout.places().size() == 4);
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{0, 1}, {16, 16}, {32, 17}, {64, 3}};
  for (size_t i = 0; i < expected.size(); i++) {
    INFO("tensor " << i);
    CHECK(layout.places()[i].begin == expected[i].first);
    CHECK(layout.places()[i].count == expected[i].second);
  }
  CHECK(layout.totalElements() == 80);
}

TEST_CASE("a native arena has each tensor's elements in its dtype, padding included") {
  const ModelLayout layout({"",
                            {{"wide", DType::f32, {3}},
                             {"narrow", DType::bf16, {17}},
                             {"half", DType::f16, {16}},
                             {"last", DType::f32, {1}}}});
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{0, 0},   {2, 8},    {16, 64},  {17, 66},
                                                               {33, 98}, {48, 128}, {64, 160}, {80, 224}};
  for (const auto& [element, byte] : expected) {
    INFO("element " << element);
    CHECK(layout.byteAt(element) == byte);
  }
  CHECK(layout.totalElements() == 80);
}

TEST_CASE("a model without tensors takes no space") {
  const ModelLayout layout(ModelSpec{});
  CHECK(layout.totalElements() == 0);
  CHECK(layout.places().empty());
}

TEST_CASE("an element is found in its tensor, padding in the tensor before it") {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    INFO("seed " << seed);
    testing::Random random(seed);
    ModelSpec model;
    for (size_t i = 0, count = random.between(1, 20); i < count; i++) {
      model.tensors.push_back({"t" + std::to_string(i), DType::f32, {random.between(1, 60)}});
    }
    const ModelLayout layout(model);
    std::vector<size_t> holder;  // of every element, from laying out the tensors one by one
    for (size_t i = 0; i < model.tensors.size(); i++) {
      REQUIRE(layout.places()[i].begin == holder.size());
      REQUIRE(layout.places()[i].count == model.tensors[i].elementCount());
      const uint64_t padded = (model.tensors[i].elementCount() + 15) / 16 * 16;
      holder.insert(holder.end(), padded, i);
    }
    REQUIRE(layout.totalElements() == holder.size());
    bool found = true;
    for (size_t e = 0; e < holder.size(); e++) found = found && layout.tensorAt(e) == holder[e];
    CHECK(found);
  }
}

}  // namespace
}  // namespace psd::types_model_layout_test

#include <cmath>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "server/optimizer/optimizer_config.h"
#include "test/support/row_model.h"

namespace psd {
namespace {

using testing::makeTable;

bool near(double value, double expected) { return std::abs(value - expected) < 1e-6 * std::abs(expected); }

Result<Optimizer> parse(const std::string& text, OptimizerUse use) {
  const auto json = nlohmann::ordered_json::parse(text);
  ObjectReader reader(json);
  Optimizer optimizer = readOptimizer(reader, use);
  PSD_RETURN_IF_ERROR(reader.finish());
  return optimizer;
}

TEST_CASE("rowwise_adagrad is for embedding tables only") {
  const std::string text =
      R"({"type": "rowwise_adagrad", "lr": 0.5, "eps": 0.25, "initial_accumulator_value": 2, "weight_decay": 1})";
  const auto refused = parse(text, OptimizerUse::tensors);
  CHECK(refused.error().code == ErrorCode::invalidArgument);
  CHECK(refused.message() ==
        "type: 'rowwise_adagrad' supports embedding tables only, not tensors; adagrad supports both");
  const auto optimizer = parse(text, OptimizerUse::rows);
  PSD_REQUIRE_OK(optimizer);
  CHECK(optimizer->rowsOnly());
  CHECK(optimizer->describe() ==
        "rowwise_adagrad lr=0.5 weight_decay=1 initial_accumulator_value=2 eps=0.25");
  CHECK(writeOptimizer(*parse(writeOptimizer(*optimizer).dump(), OptimizerUse::rows)) ==
        writeOptimizer(*optimizer));
  CHECK(parse(R"({"type": "group_ftrl"})", OptimizerUse::tensors).message() ==
        "type: 'group_ftrl' supports embedding tables only, not tensors; ftrl supports both");
  for (const std::string name : {"sgd", "adagrad", "rmsprop", "adadelta", "adam", "adamw", "ftrl", "lion"}) {
    const auto other = parse(R"({"type": ")" + name + "\"}", OptimizerUse::rows);
    PSD_REQUIRE_OK(other);
    CHECK_FALSE(other->rowsOnly());
  }
}

TEST_CASE("rowwise_adagrad divides by the root of the sum of mean squares") {
  const auto optimizer = parse(R"({"type": "rowwise_adagrad", "eps": 0.5})", OptimizerUse::rows);
  PSD_REQUIRE_OK(optimizer);
  const auto table = makeTable(4, *optimizer, {.initial = {RowInitial::Kind::zero}});
  const std::vector<uint64_t> ids{1, 1};
  PSD_REQUIRE_OK(table->insertMissing(ids, Version{1}));
  // Mean squares 4 and 12: roots 2 and 4.
  const std::vector<float> gradients{2, -2, 2, -2, 0, 0, 0, std::sqrt(48.f)};
  CHECK(table->apply(ids, gradients, {}, {1, 1.}, true, Version{2}) == 2);
  std::vector<float> values(4);
  table->gather(std::vector<uint64_t>{1}, values);
  CHECK(near(values[0], -2 / 2.5));
  CHECK(near(values[1], 2 / 2.5));
  CHECK(near(values[3], 2 / 2.5 - std::sqrt(48.f) / 4.5));
  std::vector<uint32_t> rows(1);
  table->find(std::vector<uint64_t>{1}, rows);
  std::vector<float> sum(1);
  table->readPlane(1, rows, sum);
  CHECK(near(sum[0], 16));
}

TEST_CASE("a rowwise slot takes one float of a row's memory") {
  Optimizer rowwise, full;
  rowwise.algorithm = RowwiseAdagrad{};
  full.algorithm = Adagrad{};
  CHECK(makeTable(32, rowwise)->layout().rowBytes() == 132);
  CHECK(makeTable(32, full)->layout().rowBytes() == 256);
  CHECK(makeTable(32)->layout().rowBytes() == 128);
}

}  // namespace
}  // namespace psd

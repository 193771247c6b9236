// Declarations of a user's own model, and types of columns as texts.
#include "trainer/task/declaration.h"

#include "test/support/catch.h"
#include "trainer/task/column_text.h"

namespace psd::declaration_test {
namespace {

using Catch::Matchers::Contains;

std::string problemOf(const std::string& json) {
  const auto read = readDeclaration(json, "'m.pt': psd.json");
  REQUIRE_FALSE(read.ok());
  CHECK(read.message().find('\n') == std::string::npos);
  CHECK_THAT(read.message(), Catch::Matchers::StartsWith("'m.pt': psd.json"));
  return read.message();
}

}  // namespace

TEST_CASE("a column's type is parsed as printed") {
  for (const std::string text : {"f32", "f64[3]", "i32[any,2]", "i64 below 10", "u8[1,28,28] below 255",
                                 "i64[any] below 9223372036854775807"}) {
    const auto column = readColumn("x", text);
    PSD_REQUIRE_OK(column);
    CHECK(column->typeText() == text);
  }
  for (const std::string text : {"", "float", "f32[", "f32[]", "f32[0]", "f32[1,]", "f32[-1]", "f32 below 3",
                                 "i64 below 0", "i64 below", "i64 below 9223372036854775808", "i64below 3",
                                 "f32[3]x", "f32[4294967296]", "f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"}) {
    INFO(text);
    CHECK_THAT(readColumn("x", text).message(), Contains("is not a column type; expected f32"));
  }
}

TEST_CASE("a declaration has columns, tables with the inputs of their rows, and metrics") {
  const auto read = readDeclaration(
      R"({"columns": {"z": "i64[2]", "a": "f32"},
          "tables": {"item": {"dim": 4, "rows": {"item.rows": "z"}},
                     "more": {"dim": 1, "initial": "normal", "scale": 0.5, "seed": 9, "rows": {"p": "z", "q": "z"}},
                     "zero": {"dim": 2, "initial": "zero", "rows": {"r": "z"}}},
          "metrics": {"accuracy": "share", "auc": "auc", "mae": "mean", "ppl": "exponential", "rmse": "root"}})",
      "here");
  PSD_REQUIRE_OK(read);
  CHECK(describeColumns(read->columns) == "z i64[2], a f32");
  REQUIRE(read->tables.size() == 3);
  CHECK(read->tables[0].toString() == "item rows[4] uniform 0.01 seed 1");
  CHECK(read->tables[1].toString() == "more rows[1] normal 0.5 seed 9");
  CHECK(read->tables[2].initial.kind == RowInitial::Kind::zero);
  REQUIRE(read->rows.size() == 4);
  CHECK((read->rows[2].name == "q" && read->rows[2].column == "z" && read->rows[2].table == 1));
  REQUIRE(read->metrics.size() == 5);
  CHECK(read->metrics[0].kind == MetricKind::share);
  CHECK(read->metrics[1].kind == MetricKind::auc);
  CHECK(read->metrics[2].kind == MetricKind::mean);
  CHECK(read->metrics[3].kind == MetricKind::exponential);
  CHECK(read->metrics[4].kind == MetricKind::root);
}

TEST_CASE("a declaration states what a trainer computes of outputs, by default cross-entropy of the label") {
  const auto read = readDeclaration(
      R"({"columns": {"user": "i64", "rating": "f32"},
          "output_loss": {"kind": "squared_error", "output": "guess", "target": "rating", "penalty": "decay"}})",
      "here");
  PSD_REQUIRE_OK(read);
  CHECK(read->outputLoss ==
        LossSpec{LossKind::squaredError, "guess", {"rating", ElementType::f32, {}, 0}, "decay"});
  const auto plain = readDeclaration(R"({"columns": {"x": "f32"}})", "here");
  PSD_REQUIRE_OK(plain);
  CHECK(plain->outputLoss == LossSpec());
  const auto wrong = [](const std::string& loss) {
    return problemOf(R"({"columns": {"x": "f32", "label": "i64", "odd": "i64 below 2"}, "output_loss": )" +
                     loss + "}");
  };
  CHECK_THAT(wrong(R"({"kind": "cross"})"), Contains("output_loss.kind") && Contains("binary_cross_entropy"));
  CHECK_THAT(wrong(R"({"target": "y"})"),
             Contains("output_loss.target: must be one of the columns, not 'y'"));
  CHECK_THAT(wrong(R"({"target": "x"})"), Contains("output_loss: cross_entropy has as its target x f32"));
  CHECK_THAT(wrong(R"({"kind": "binary_cross_entropy"})"), Contains("label i64; expected i64 below 2"));
  CHECK_THAT(wrong(R"({"penalty": "p"})"), Contains("output_loss: the penalty 'p' requires the name"));
  CHECK_THAT(wrong(R"({"weight": 1})"), Contains("output_loss.weight: unknown key"));
}

TEST_CASE("an error in a declaration is named by its place") {
  CHECK_THAT(problemOf("{"), Contains("line 1"));
  CHECK_THAT(problemOf("{}"), Contains("columns: must be an object"));
  CHECK_THAT(problemOf(R"({"columns": {}})"), Contains("columns: must name at least one column"));
  CHECK_THAT(problemOf(R"({"columns": {"x": "float"}, "metrics": {"m": "mean"}})"),
             Contains("columns.x: 'float' is not a column type"));
  CHECK_THAT(problemOf(R"({"columns": {"x": 3}})"), Contains("columns.x"));
  CHECK_THAT(problemOf(R"({"columns": {"x": "f32"}, "colums": {}})"), Contains("colums: unknown key"));
  CHECK_THAT(problemOf(R"({"columns": {"x": "f32"}, "metrics": {"m": "sum"}})"),
             Contains("metrics.m") && Contains("mean"));
  for (const std::string name : {"loss", "samples", "a b", ""}) {
    CHECK_THAT(problemOf(R"({"columns": {"x": "f32"}, "metrics": {")" + name + R"(": "mean"}})"),
               Contains("is not a metric name"));
  }
  const auto withTable = [](const std::string& table) {
    return R"({"columns": {"id": "i64", "x": "f32"}, "tables": {"t": )" + table + "}}";
  };
  CHECK_THAT(problemOf(withTable(R"({"rows": {"r": "id"}})")), Contains("tables.t.dim: is missing"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 0, "rows": {"r": "id"}})")), Contains("tables.t.dim"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 1})")), Contains("tables.t.rows: must name at least one input"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 1, "rows": {"r": "x"}})")),
             Contains("must be one of the columns of i64"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 1, "rows": {"r": "y"}})")), Contains("not 'y'"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 1, "rows": {"x": "id"}})")),
             Contains("is the name of another input"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 1, "rows": {"x.ids": "id"}})")),
             Contains("is the name of another input"));
  CHECK_THAT(problemOf(withTable(R"({"dim": 1, "initial": "ones", "rows": {"r": "id"}})")), Contains("zero"));
}

}  // namespace psd::declaration_test

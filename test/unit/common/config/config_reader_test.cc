#include "common/config/config_reader.h"

#include <string>
#include <vector>

#include "common/config/json_file.h"
#include "test/support/catch.h"

namespace psd::config_reader_test {
namespace {

using Json = nlohmann::ordered_json;

struct Shape {
  enum class Fill { none, dots };
  std::string kind;
  double radius = 1;
  uint32_t sides = 3;
  Fill fill = Fill::none;
  std::optional<uint64_t> layer;
  std::optional<double> glow;
  std::vector<std::string> tags;
};

Shape readShape(ConfigReader in) {
  Shape shape;
  in.alternatives({"kind", "What it is."}, "circle", {{"circle", "Round."}, {"polygon", "With corners."}},
                  [&shape](ConfigReader& options, std::string_view kind) {
                    shape.kind = kind;
                    if (kind == "circle") {
                      options.number({"radius", "Of the circle.", Key::kLive}, shape.radius, {.min = 0});
                    } else {
                      options.integer({"sides", "Of the polygon."}, shape.sides, 3, 9);
                      options.require("sides", "is needed by a polygon");
                    }
                    options.choice<Shape::Fill>({"fill", "Its pattern."}, shape.fill,
                                                {{"none", Shape::Fill::none}, {"dots", Shape::Fill::dots}});
                    options.integer({"layer", "Its layer."}, shape.layer, 0, 5);
                    if (auto glow = options.optionalObject({"glow", "Its glow."})) {
                      double width = 2;
                      glow->number({"width", "Of the glow."}, width, {.min = 0, .max = 4});
                      shape.glow = width;
                    }
                    options.match({"match", "Names."}, shape.tags, "the names of shapes");
                  });
  return shape;
}

Result<Shape> read(const std::string& text) {
  ObjectReader values(*parseJson(text, "test"));
  Shape shape = readShape(values);
  PSD_RETURN_IF_ERROR(values.finish());
  return shape;
}

}  // namespace

TEST_CASE("a declaration reads what is given and leaves the default of what is not") {
  const auto circle = read(R"({"match": "a"})");
  PSD_REQUIRE_OK(circle);
  CHECK(circle->kind == "circle");
  CHECK(circle->radius == 1);
  CHECK(circle->fill == Shape::Fill::none);
  CHECK_FALSE(circle->layer);
  CHECK_FALSE(circle->glow);
  const auto polygon = read(
      R"({"kind": "polygon", "sides": 4, "fill": "dots", "layer": 2, "glow": {}, "match": ["a", "b*"]})");
  PSD_REQUIRE_OK(polygon);
  CHECK(polygon->sides == 4);
  CHECK(polygon->fill == Shape::Fill::dots);
  CHECK(polygon->layer == 2);
  CHECK(polygon->glow == 2);
  CHECK(polygon->tags == std::vector<std::string>{"a", "b*"});
}

TEST_CASE("what a declaration does not allow is an error with its path") {
  const auto problem = [](const std::string& text) {
    const auto shape = read(text);
    return shape.ok() ? "no error" : shape.message();
  };
  CHECK(problem(R"({"kind": "polygon", "match": "a"})") == "sides: is needed by a polygon");
  CHECK(problem(R"({"kind": "polygon", "sides": 2, "match": "a"})") ==
        "sides: must be an integer from 3 to 9, not 2");
  CHECK(problem(R"({"glow": {"width": 5}, "match": "a"})") ==
        "glow.width: must be a number from 0 to 4, not 5");
  CHECK(problem(R"({"sides": 3, "match": "a"})").find("sides: ") == 0);
  CHECK(problem(R"({})") == "match: is needed: the names of shapes");
  CHECK(problem(R"({"kind": "circl", "match": "a"})").find("did you mean \"circle\"?") != std::string::npos);
}

TEST_CASE("without a document the same code gives a schema of every alternative and optional object") {
  ConfigReader in = ConfigReader::describing();
  const Shape shape = readShape(in);
  CHECK(shape.kind == "circle");  // the default is read last
  const Json schema = in.schema();
  REQUIRE(schema["oneOf"].size() == 2);
  const Json &circle = schema["oneOf"][0], &polygon = schema["oneOf"][1];
  CHECK(circle["title"] == "Round.");
  CHECK(circle["additionalProperties"] == false);
  CHECK(circle["required"] == Json{"match"});
  CHECK(circle["properties"]["kind"] ==
        Json{{"description", "What it is."}, {"const", "circle"}, {"default", "circle"}});
  CHECK(circle["properties"]["radius"] == Json{{"description", "Of the circle."},
                                               {"x-live", true},
                                               {"type", "number"},
                                               {"minimum", 0.0},
                                               {"default", 1.0}});
  CHECK(circle["properties"]["glow"]["properties"]["width"]["maximum"] == 4);
  CHECK_FALSE(circle["properties"].contains("sides"));
  CHECK(polygon["required"] == Json{"kind", "sides", "match"});
  CHECK(polygon["properties"]["sides"] ==
        Json{{"description", "Of the polygon."}, {"type", "integer"}, {"minimum", 3}, {"maximum", 9}});
  CHECK(polygon["properties"]["fill"]["enum"] == Json{"none", "dots"});
  CHECK_FALSE(polygon["properties"]["layer"].contains("default"));
}

}  // namespace psd::config_reader_test

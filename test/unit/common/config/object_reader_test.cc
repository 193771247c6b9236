#include "common/config/object_reader.h"

#include <cmath>
#include <string>

#include "common/config/json_file.h"
#include "test/support/catch.h"
#include "test/support/cpu_time.h"

namespace psd::config_object_reader_test {
namespace {

using Json = nlohmann::ordered_json;

ObjectReader readerOf(const std::string& text) { return ObjectReader(*parseJson(text, "test")); }

/// The error of finish() after `read` has read {"k": value}.
template <class Read>
std::string problem(const std::string& value, Read read) {
  ObjectReader in = readerOf("{\"k\": " + value + "}");
  read(in);
  Status status = in.finish();
  return status.ok() ? "no error" : status.message();
}

}  // namespace

TEST_CASE("absent keys read as their defaults, present ones as given, and both are recorded in order") {
  ObjectReader in = readerOf(
      R"({"list": [{"n": 1}, {"n": 2}], "sub": {"lr": 1e-3}, "text": "t", "names": ["a"], "dims": [2, 3]})");
  CHECK(in.number("number", 0.5) == 0.5);
  CHECK(in.integer("integer", 7, 0, 10) == 7);
  CHECK(in.boolean("flag", true));
  CHECK(in.text("text", "x") == "t");
  CHECK(in.texts("names", {}) == std::vector<std::string>{"a"});
  CHECK(in.integers("dims", {}) == std::vector<uint64_t>{2, 3});
  CHECK(in.numbers("betas", {0.9, 0.99}) == std::vector<double>{0.9, 0.99});
  CHECK(in.choice("mode", "slow", {"slow", "fast"}) == "slow");
  ObjectReader sub = in.object("sub");
  CHECK(sub.number("lr", 1) == 1e-3);
  CHECK(in.object("absent").integer("n", 4, 0, 9) == 4);
  uint64_t sum = 0;
  for (ObjectReader& element : in.objects("list")) sum += element.integer("n", 0, 0, 9);
  CHECK(sum == 3);
  CHECK(in.objects("none").empty());
  PSD_REQUIRE_OK(in.finish());
  CHECK(in.effective().dump() ==
        R"({"number":0.5,"integer":7,"flag":true,"text":"t","names":["a"],"dims":[2,3],)"
        R"("betas":[0.9,0.99],"mode":"slow","sub":{"lr":0.001},"absent":{"n":4},)"
        R"("list":[{"n":1},{"n":2}],"none":[]})");
}

TEST_CASE("has() makes a key known without recording it") {
  ObjectReader in = readerOf(R"({"a": 1})");
  CHECK(in.has("a"));
  CHECK_FALSE(in.has("b"));
  PSD_REQUIRE_OK(in.finish());
  CHECK(in.effective().dump() == "{}");
}

TEST_CASE("a reader outlives the root that it was made from") {
  auto child = [] { return readerOf(R"({"a": {"b": {"n": 5}}})").object("a").object("b"); }();
  CHECK(child.integer("n", 0, 0, 9) == 5);
  CHECK(child.pathOf("n") == "a.b.n");
  CHECK(child.pathOf("") == "a.b");
}

TEST_CASE("a number of the wrong type or range names path, rule and value") {
  auto above0 = [](ObjectReader& in) { in.number("k", 1, {.min = 0, .minExclusive = true}); };
  CHECK(problem("\"fast\"", above0) == "k: must be a number greater than 0, not \"fast\"");
  CHECK(problem("0", above0) == "k: must be a number greater than 0, not 0");
  CHECK(problem("1e-300", above0) == "no error");
  CHECK(problem("null", above0) == "k: must be a number greater than 0, not null");
  CHECK(problem("{}", above0) == "k: must be a number greater than 0, not an object");
  auto range = [](NumberRange numbers) {
    return [numbers](ObjectReader& in) { in.number("k", 1, numbers); };
  };
  CHECK(problem("[1]", range({})) == "k: must be a number, not a list");
  CHECK(problem("1.5", range({0, 1})) == "k: must be a number from 0 to 1, not 1.5");
  CHECK(problem("1", range({0, 1, false, true})) ==
        "k: must be a number of at least 0 and less than 1, not 1");
  CHECK(problem("-1", range({.min = 0})) == "k: must be a number of at least 0, not -1");
  CHECK(problem("2.5", range({.max = 2.25})) == "k: must be a number of at most 2.25, not 2.5");
}

TEST_CASE("NaN and infinity are not numbers") {
  for (double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    ObjectReader in(Json{{"k", value}});
    in.number("k", 0);
    CHECK(in.finish().message() == "k: must be a number, not null");
  }
}

TEST_CASE("an integer that is negative, fractional, too large or not a number is rejected") {
  auto read = [](ObjectReader& in) { in.integer("k", 1, 1, 65536); };
  std::string rule = "k: must be an integer from 1 to 65536, not ";
  CHECK(problem("-3", read) == rule + "-3");
  CHECK(problem("0", read) == rule + "0");
  CHECK(problem("2.5", read) == rule + "2.5");
  CHECK(problem("65537", read) == rule + "65537");
  CHECK(problem("\"4\"", read) == rule + "\"4\"");
  CHECK(problem("true", read) == rule + "true");
  CHECK(problem("4.0", read) == "no error");
  auto any = [](ObjectReader& in) { in.integer("k", 0, 0, UINT64_MAX); };
  CHECK(problem("18446744073709551615", any) == "no error");
  CHECK(problem("18446744073709551616", any) ==
        "k: must be an integer of at least 0, not 1.8446744073709552e+19");
}

TEST_CASE("errors of the other types name the type") {
  CHECK(problem("1", [](ObjectReader& in) { in.boolean("k", false); }) == "k: must be true or false, not 1");
  CHECK(problem("1", [](ObjectReader& in) { in.text("k", ""); }) == "k: must be a string, not 1");
  CHECK(problem("\"a\"", [](ObjectReader& in) { in.texts("k", {}); }) == "k: must be a list, not \"a\"");
  CHECK(problem("[\"a\", 2]", [](ObjectReader& in) { in.texts("k", {}); }) ==
        "k[1]: must be a string, not 2");
  CHECK(problem("[3, -1]", [](ObjectReader& in) { in.integers("k", {}); }) ==
        "k[1]: must be an integer of at least 0, not -1");
  CHECK(problem("[0.9, 1]", [](ObjectReader& in) {
          in.numbers("k", {}, {0, 1, false, true});
        }) == "k[1]: must be a number of at least 0 and less than 1, not 1");
  CHECK(problem("[]", [](ObjectReader& in) { in.object("k"); }) == "k: must be an object, not a list");
  CHECK(problem("{}", [](ObjectReader& in) { in.objects("k"); }) ==
        "k: must be a list of objects, not an object");
  CHECK(problem("[{}, 1]", [](ObjectReader& in) { in.objects("k"); }) == "k[1]: must be an object, not 1");
  ObjectReader list(Json::array());
  CHECK(list.finish().message() == "the configuration: must be an object, not a list");
}

TEST_CASE("a choice lists the valid values and suggests the nearest") {
  auto read = [](ObjectReader& in) { in.choice("k", "hogwild", {"hogwild", "locked"}); };
  CHECK(problem("\"hogwld\"", read) ==
        R"(k: must be one of "hogwild", "locked", not "hogwld"; did you mean "hogwild"?)");
  CHECK(problem("\"sync\"", read) == R"(k: must be one of "hogwild", "locked", not "sync")");
  CHECK(problem("3", read) == R"(k: must be one of "hogwild", "locked", not 3)");
  CHECK(problem("\"f64\"", [](ObjectReader& in) { in.choice("k", "f32", {"f32"}); }) ==
        R"(k: must be "f32", not "f64")");
}

TEST_CASE("a wrong value reads as the fallback") {
  ObjectReader in = readerOf(R"({"n": "x", "list": ["a", 1], "mode": "z"})");
  CHECK(in.integer("n", 3, 0, 9) == 3);
  CHECK(in.texts("list", {}) == std::vector<std::string>{"a"});
  CHECK(in.choice("mode", "slow", {"slow"}) == "slow");
  CHECK_FALSE(in.finish().ok());
}

TEST_CASE("an unknown key names its path and the nearest key, else all keys") {
  ObjectReader near = readerOf(R"({"policy": {"tpye": "locked"}})");
  near.object("policy").text("type", "hogwild");
  CHECK(near.finish().message() == "policy.tpye: unknown key; did you mean 'type'?");

  ObjectReader far = readerOf(R"({"groups": [{"match": "a"}, {"colour": 1}]})");
  for (ObjectReader& group : far.objects("groups")) group.text("match", ""), group.number("lr", 1);
  CHECK(far.finish().message() == "groups[1].colour: unknown key; valid keys: match, lr");
}

TEST_CASE("a key with a line break stays on one line") {
  ObjectReader in = readerOf(R"({"a\nb": 1})");
  in.number("lr", 1);
  CHECK(in.finish().message() == R"(a\nb: unknown key; valid keys: lr)");
}

TEST_CASE("an unknown key of an object with a type names the type") {
  ObjectReader in(Json::parse(R"({"policy": {"bound": 3}})"));
  in.object("policy").choice("type", "hogwild", {"hogwild", "locked"});
  CHECK(in.finish().message() == "policy.bound: no key of type 'hogwild'; valid keys: type");
}

TEST_CASE("a wrong value is reported before an unknown key, and that before a caller's failure") {
  ObjectReader in = readerOf(R"({"lrr": 1, "n": "x"})");
  in.fail("lr", "is needed");
  in.number("lr", 1);
  CHECK(in.finish().message() == "lrr: unknown key; did you mean 'lr'?");
  in.number("n", 1);
  CHECK(in.finish().message() == "n: must be a number, not \"x\"");
}

TEST_CASE("a rejected key is reported at its path and is not listed as valid") {
  ObjectReader given = readerOf(R"({"depth": 1})");
  given.number("lr", 1);
  given.refuse("depth", "has no place here");
  CHECK(given.finish().message() == "depth: has no place here");

  ObjectReader absent = readerOf(R"({"colour": 1})");
  absent.number("lr", 1);
  absent.refuse("depth", "has no place here");
  CHECK(absent.finish().message() == "colour: unknown key; valid keys: lr");
  CHECK(absent.effective() == Json({{"lr", 1}}));
}

TEST_CASE("fail() keeps the first failure, under the path of its object") {
  ObjectReader in = readerOf(R"({"model": {}})");
  ObjectReader model = in.object("model");
  model.fail("", "needs 'tensors' or 'file'");
  model.fail("name", "is empty");
  Status status = in.finish();
  CHECK(status.message() == "model: needs 'tensors' or 'file'");
  CHECK(status.error().code == ErrorCode::invalidArgument);
}

// A linear search for each key took more than a minute.
TEST_CASE("the time to read many keys grows linearly") {
  const auto read = [](uint64_t keys) {
    std::string text = "{\"names\": {";
    for (uint64_t i = 0; i < keys; i++)
      text += (i ? ", \"" : "\"") + std::to_string(i) + "\": " + std::to_string(i);
    ObjectReader in = readerOf(text + "}}");
    ObjectReader names = in.object("names");
    for (const std::string& key : names.keys())
      REQUIRE(std::to_string(names.integer(key, 0, 0, keys)) == key);
    PSD_REQUIRE_OK(in.finish());
    CHECK(in.effective()["names"].size() == keys);
    CHECK(in.effective()["names"].front() == 0);
  };
  CHECK(testing::growsLinearly(100'000, read));
}

}  // namespace psd::config_object_reader_test

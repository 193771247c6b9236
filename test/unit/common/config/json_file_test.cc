#include "common/config/json_file.h"

#include <string>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::config_json_file_test {
namespace {

using Json = nlohmann::ordered_json;

std::string errorOf(const std::string& text) {
  Result<Json> result = parseJson(text, "f.json");
  return result.ok() ? "no error" : result.message();
}

/// The document after one assignment, or the error.
std::string afterOverride(const std::string& document, const std::string& assignment) {
  Json json = *parseJson(document, "document");
  Status status = applyOverride(json, assignment);
  return status.ok() ? json.dump() : status.message();
}

}  // namespace

TEST_CASE("parseJson accepts comments and keeps the order of keys") {
  auto result = parseJson("// first\n{\"b\": 1, /* second */ \"a\": [true, null, -2, 0.5]} // third", "f");
  PSD_REQUIRE_OK(result);
  CHECK(result->dump() == R"({"b":1,"a":[true,null,-2,0.5]})");
}

TEST_CASE("a syntax error names file, line, column, the expected and the actual token") {
  auto [text, message] = GENERATE(table<std::string, std::string>({
      {"{\n  \"a\": 1\n  \"lr\": 2\n}", "f.json, line 3, column 3: expected ',' or '}', not '\"lr\"'"},
      {"{\"a\": [1 2]}", "f.json, line 1, column 10: expected ',' or ']', not '2'"},
      {"{\"a\": 1,}",
       "f.json, line 1, column 9: expected another key in double quotes after the ',', not '}'"},
      {"{a: 1}", "f.json, line 1, column 2: expected a key in double quotes or '}', not 'a'"},
      {"{'a': 1}", "f.json, line 1, column 2: expected a key in double quotes or '}', not '''"},
      {"{\"a\" 1}", "f.json, line 1, column 6: expected ':' after the key, not '1'"},
      {"{\"a\": fast}", "f.json, line 1, column 7: expected a value, not 'fast'"},
      {"{\"a\": locked}", "f.json, line 1, column 7: expected a value, not 'locked'"},
      {"{\"a\": True}", "f.json, line 1, column 7: expected a value, not 'True'"},
      {"{\"a\": nan}", "f.json, line 1, column 7: expected a value, not 'nan'"},
      {"{\"a\": }", "f.json, line 1, column 7: expected a value, not '}'"},
      {"{\"a\": [1,]}", "f.json, line 1, column 10: expected a value, not ']'"},
      {"{\"a\": 5@}", "f.json, line 1, column 8: expected ',' or '}', not '@'"},
      {"{\"a\": 1 true}", "f.json, line 1, column 9: expected ',' or '}', not 'true'"},
      {"{\"é\": €}", "f.json, line 1, column 7: expected a value, not '€'"},
      {"{\"a\": 1}\n{", "f.json, line 2, column 1: expected nothing more, not '{'"},
      {"{\"a\": {\n\n",
       "f.json, line 1, column 8: expected a key in double quotes or '}', not the end of the text"},
      {"", "f.json, line 1, column 1: expected a value, not the end of the text"},
      {"{\"a\": tru", "f.json, line 1, column 7: expected a value, not 'tru'"},
  }));
  INFO(text);
  CHECK(errorOf(text) == message);
}

TEST_CASE("malformed strings, numbers and comments are named as such") {
  auto [text, message] = GENERATE(table<std::string, std::string>({
      {"{\"a\": \"b\n}", "f.json, line 1, column 9: the closing '\"' of a string is missing"},
      {"{\"a\": \"b", "f.json, line 1, column 7: the closing '\"' of a string is missing"},
      {"{\"a\": \"\xff\"}", "f.json, line 1, column 8: not UTF-8 text"},
      {"{\"a\": \"\\x\"}", "f.json, line 1, column 9: invalid string: forbidden character after backslash"},
      {"{\"a\": 1e999}", "f.json, line 1, column 7: the number '1e999' is too large"},
      {"{\"a\": -x}", "f.json, line 1, column 8: invalid number; expected digit after '-'"},
      {"{ /* }", "f.json, line 1, column 7: invalid comment; missing closing '*/'"},
      {"{ # }", "f.json, line 1, column 3: expected a key in double quotes or '}', not '#'"},
  }));
  INFO(text);
  CHECK(errorOf(text) == message);
  CHECK(errorOf(text).find("json.exception") == std::string::npos);
}

TEST_CASE("text with a zero byte is rejected") {
  CHECK(errorOf(std::string("{}\0{", 4)) == "f.json: holds a zero byte: not JSON text");
}

TEST_CASE("lists and objects are nested at most 100 deep") {
  const auto nested = [](size_t depth) {
    return parseJson(std::string(depth, '[') + std::string(depth, ']'), "config.json");
  };
  PSD_REQUIRE_OK(nested(100));
  CHECK(nested(101).message() == "config.json: lists and objects are nested more than 100 deep");
  CHECK_FALSE(nested(1'000'000).ok());
}

TEST_CASE("a repeated key is an error with its path") {
  CHECK(errorOf(R"({"a": 1, "a": 2})") == "f.json: a: appears twice");
  CHECK(errorOf(R"({"policy": {"type": "x", "type": "y"}})") == "f.json: policy.type: appears twice");
  CHECK(errorOf(R"({"t": [{}, {"n": 1, "n": 1}]})") == "f.json: t[1].n: appears twice");
  CHECK(errorOf(R"({"a": {"n": 1}, "b": {"n": 1}})") == "no error");
}

TEST_CASE("readJsonFile reads a file and names the one that it cannot read") {
  testing::TempDir dir;
  auto env = makePosixEnv();
  testing::writeFile(dir.file("good.json"), "{\"shards\": 2}\n");
  testing::writeFile(dir.file("bad.json"), "{");
  testing::writeFile(dir.file("large.json"), std::string(kConfigBytesMax + 1, ' '));
  auto good = readJsonFile(*env, dir.file("good.json"));
  PSD_REQUIRE_OK(good);
  CHECK((*good)["shards"] == 2);
  CHECK(readJsonFile(*env, dir.file("bad.json")).message() ==
        dir.file("bad.json") +
            ", line 1, column 2: expected a key in double quotes or '}', not the end of the text");
  CHECK(readJsonFile(*env, dir.file("none.json")).message() ==
        "'" + dir.file("none.json") + "': cannot open: No such file or directory");
  CHECK(readJsonFile(*env, dir.path()).error().code == ErrorCode::io);
  CHECK(readJsonFile(*env, dir.file("large.json")).message() ==
        "'" + dir.file("large.json") + "': holds 16777217 bytes; a configuration has at most 16777216");
}

TEST_CASE("a quotation of invalid UTF-8 is truncated at any length") {
  const std::string bytes(100, '\x94');  // each byte continues a character that never began
  const auto parsed = parseJson(bytes, "input");
  REQUIRE(!parsed.ok());
  CHECK(parsed.message() == "input, line 1, column 1: expected a value, not '\x94…'");
}

TEST_CASE("an override sets a value and creates the objects around it") {
  CHECK(afterOverride("{}", "policy.type=locked") == R"({"policy":{"type":"locked"}})");
  CHECK(afterOverride(R"({"a":{"b":1,"c":2}})", "a.b=3") == R"({"a":{"b":3,"c":2}})");
  CHECK(afterOverride("{}", "lr=0.5") == R"({"lr":0.5})");
  CHECK(afterOverride("{}", "on=true") == R"({"on":true})");
  CHECK(afterOverride("{}", "list=[\"a\", 1]") == R"({"list":["a",1]})");
  CHECK(afterOverride("{}", "save=/tmp/a=b.st") == R"({"save":"/tmp/a=b.st"})");
  CHECK(afterOverride("{}", "name=\"5\"") == R"({"name":"5"})");
  CHECK(afterOverride("{}", "save=") == R"({"save":""})");
}

TEST_CASE("an override of null removes the value") {
  CHECK(afterOverride(R"({"a":{"b":1,"c":2}})", "a.b=null") == R"({"a":{"c":2}})");
  CHECK(afterOverride(R"({"a":1})", "a=null") == "{}");
  CHECK(afterOverride(R"({"a":1})", "b=null") == R"({"a":1,"b":null})");
}

TEST_CASE("a bad override names the assignment and the reason") {
  CHECK(afterOverride("{}", "shards") == "'shards': write KEY=VALUE, as in policy.type=locked");
  CHECK(afterOverride("{}", "=3") == "'=3': a key is empty; write KEY=VALUE, as in policy.type=locked");
  CHECK(afterOverride("{}", "a..b=3") ==
        "'a..b=3': a key is empty; write KEY=VALUE, as in policy.type=locked");
  CHECK(afterOverride(R"({"a": 1})", "a.b=3") ==
        "'a.b=3': 'b' cannot be set inside 1; give the whole value instead");
  CHECK(afterOverride(R"({"a": [1]})", "a.b=3") ==
        "'a.b=3': 'b' cannot be set inside a list; give the whole value instead");
  CHECK(afterOverride("{}", "listen=[\"a\"") ==
        "'listen=[\"a\"': value, line 1, column 5: expected ',' or ']', not the end of the text");
  CHECK(afterOverride("{}", "save=\xff") == "'save=?': the value is not UTF-8 text");
}

TEST_CASE("describeJson shows short values whole and cuts long ones between characters") {
  CHECK(describeJson("fast") == "\"fast\"");
  CHECK(describeJson(nullptr) == "null");
  CHECK(describeJson(-2.5) == "-2.5");
  CHECK(describeJson(Json::object()) == "an object");
  CHECK(describeJson(Json::array()) == "a list");
  std::string accents;
  for (int i = 0; i < 40; i++) accents += "é";
  std::string kept = accents.substr(0, 58);
  CHECK(describeJson(accents) == "\"" + kept + "…");
}

TEST_CASE("any bytes in a document can be serialized") {
  using Json = nlohmann::ordered_json;
  CHECK(jsonText(Json{{"path", "/tmp/s\xff.sock"}}) == "{\"path\":\"/tmp/s\xef\xbf\xbd.sock\"}");
  CHECK(jsonText(Json{{"a", 1}}, 2) == "{\n  \"a\": 1\n}");
  CHECK(jsonText(Json("caf\u00e9")) == "\"caf\u00e9\"");
}

}  // namespace psd::config_json_file_test

#include "common/text/text.h"

#include "common/text/split.h"
#include "test/support/catch.h"

namespace psd::text_test {
namespace {

TEST_CASE("texts are joined with the separator, empty ones included") {
  CHECK(joined(std::vector<std::string>{}, ", ").empty());
  CHECK(joined(std::vector<std::string_view>{"one"}, ", ") == "one");
  CHECK(joined(std::vector<std::string>{"", "two", ""}, ", ") == ", two, ");
  CHECK(joined(std::vector<int>{1, 2, 3}, "; ", [](int each) { return std::to_string(each); }) == "1; 2; 3");
}

TEST_CASE("a text is split at its commas, and empty parts count") {
  using Parts = std::vector<std::string>;
  CHECK(splitAtCommas("") == Parts{""});
  CHECK(splitAtCommas("one") == Parts{"one"});
  CHECK(splitAtCommas(",two,,3,") == Parts{"", "two", "", "3", ""});
}

TEST_CASE("nearest finds the intended candidate, or none") {
  std::vector<std::string_view> keys = {"type", "lr", "momentum", "weight_decay", "sgd", "rmsprop"};
  CHECK(nearest("tpye", keys) == "type");
  CHECK(nearest("Type", keys) == "type");
  CHECK(nearest("momentm", keys) == "momentum");
  CHECK(nearest("weightDecay", keys) == "weight_decay");
  CHECK(nearest("sdg", keys) == "sgd");
  CHECK(nearest("learning_rate", keys).empty());
  CHECK(nearest("xy", keys).empty());
  CHECK(nearest("", keys).empty());
  CHECK(nearest("type", {}).empty());
}

TEST_CASE("untrusted text is sanitized before it is quoted") {
  CHECK(printable("plain text ~") == "plain text ~");
  CHECK(printable("") == "");
  CHECK(printable("a\nb\x1b[0m\x7f\xff") == "a?b?[0m??");
  CHECK(printable(std::string(201, 'x')) == std::string(200, 'x') + "...");
  CHECK(printable(std::string(200, 'x')) == std::string(200, 'x'));
  CHECK(printable("abcdef", 3) == "abc...");
}

TEST_CASE("a message becomes one line") {
  CHECK(oneLine("plain text ~", 100) == "plain text ~");
  CHECK(oneLine("", 100).empty());
  CHECK(oneLine("a\nb\x1b[0m\x7f\xff", 100) == "a?b?[0m??");
  CHECK(oneLine("caf\u00e9 \u2026 \U0001f600", 100) == "caf\u00e9 \u2026 \U0001f600");
  CHECK(quotedPath("/a b") == "'/a b'");
  CHECK(quotedPath(std::string(2000, 'x')) == "'" + std::string(1000, 'x') + "...'");
  CHECK(oneLine("abcdef", 6) == "abcdef");
  CHECK(oneLine("abcdef", 3) == "abc...");
  CHECK(oneLine("ab\u2026", 4) == "ab...");  // no partial character
}

TEST_CASE("invalid UTF-8 is recognized") {
  for (const char* text :
       {"", "plain", "caf\xc3\xa9", "\xe2\x80\xa6", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xee\x80\x80"}) {
    INFO(text);
    CHECK(isUtf8(text));
  }
  for (const char* text :
       {"\xff", "\x80", "\xc3", "\xc3(", "\xc0\xaf", "\xe2\x80", "\xe0\x80\x80", "\xed\xa0\x80",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "ok \xe2\x80"}) {
    INFO(text);
    CHECK_FALSE(isUtf8(text));
  }
}

TEST_CASE("a time is written in UTC") {
  CHECK(utcText(0) == "1970-01-01T00:00:00Z");
  CHECK(utcText(951'827'696) == "2000-02-29T12:34:56Z");
}

}  // namespace
}  // namespace psd::text_test

#include <algorithm>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/text.h"
#include "trainer/dataset/vocabulary.h"

namespace psd {
namespace {

using Catch::Matchers::Contains;
using testing::TempDir;
using testing::writeFile;

std::vector<std::string> cut(std::string text, TextLevel level) {
  const auto tokens = cutText(text, level);
  PSD_REQUIRE_OK(tokens);
  return {tokens->begin(), tokens->end()};
}

using Words = std::vector<std::string>;

std::vector<int64_t> tokensOf(const Dataset& data, std::vector<uint32_t> samples) {
  Batch batch;
  PSD_REQUIRE_OK(data.fill(samples, batch));
  const auto tokens = batch.values<int64_t>("tokens");
  return {tokens.begin(), tokens.end()};
}

/// The error of opening text:ARGUMENT.
Error problemOf(const std::string& argument, Split split = Split::train) {
  const auto opened = openDataset("text:" + argument, split, {.seed = 1});
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.message().find('\n') == std::string::npos);
  return opened.error();
}

}  // namespace

TEST_CASE("a text is split into words in lower case, punctuation and ends of lines") {
  CHECK(cut("Don't STOP, now!\n\n2nd line", TextLevel::word) ==
        Words{"don't", "stop", ",", "now", "!", "\n", "\n", "2nd", "line"});
  CHECK(cut("a\t b\r\nc", TextLevel::word) == Words{"a", "b", "\n", "c"});
  CHECK(cut("Äpfel—naïve «x» ３ 日本、語", TextLevel::word) ==
        Words{"Äpfel", "—", "naïve", "«", "x", "»", "３", "日本", "、", "語"});
  CHECK(cut("", TextLevel::word).empty());
}

TEST_CASE("a text is split into characters unchanged") {
  CHECK(cut("Aä\n 😀", TextLevel::character) == Words{"A", "ä", "\n", " ", "😀"});
}

TEST_CASE("invalid UTF-8 is named") {
  for (const auto& [text, place] : {std::pair<std::string, int>{"ab\xff", 2},
                                    {"\xc3", 0},              // truncated
                                    {"a\xc3(", 1},            // no continuation
                                    {"ok\xc0\x80", 2},        // overlong
                                    {"\xe0\x80\x80", 0},      // overlong
                                    {"\xed\xa0\x80", 0},      // a surrogate
                                    {"\xf4\x90\x80\x80", 0},  // beyond the last code point
                                    {"x\x80", 1}}) {
    std::string copy = text;
    CHECK(cutText(copy, TextLevel::word).message() == "byte " + std::to_string(place) + " is not UTF-8");
  }
}

TEST_CASE("the most frequent tokens have numbers, with ties in lexicographic order") {
  const std::vector<std::string_view> tokens{"b", "c", "a", "c", "b", "d", "c"};
  const Vocabulary all(tokens, 100);
  CHECK(all.size() == 5);
  CHECK(all.numberOf("c") == 1);
  CHECK(all.numberOf("b") == 2);
  CHECK(all.numberOf("a") == 3);
  CHECK(all.numberOf("d") == 4);
  CHECK(all.numberOf("e") == Vocabulary::kUnknown);
  const Vocabulary few(tokens, 3);
  CHECK(few.size() == 3);
  CHECK(few.numberOf("b") == 2);
  CHECK(few.numberOf("a") == Vocabulary::kUnknown);
}

TEST_CASE("samples are consecutive tokens that overlap by one, and the last tenth is the test part") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 45; ++i) text += "x y ";
  text += "z z z z z y z z x z";  // the last ten of a hundred tokens
  const std::string path = folder.file("text:with=a colon?.txt");
  writeFile(path, text);

  const auto train = openText(path + ":length=8", Split::train);
  PSD_REQUIRE_OK(train);
  CHECK((*train)->sampleCount() == 11);  // 90 tokens: 89 are predicted
  CHECK(describeColumns((*train)->columns()) == "tokens i64[9] below 3");
  CHECK((*train)->describe() == "11 sequences of 8 words from " + path);
  CHECK(tokensOf(**train, {10, 0}) ==
        std::vector<int64_t>{1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 2, 1, 2, 1});

  const auto test = openText(path + ":length=8", Split::test);
  PSD_REQUIRE_OK(test);
  CHECK((*test)->sampleCount() == 1);
  CHECK((*test)->columns() == (*train)->columns());
  CHECK(tokensOf(**test, {0}) == std::vector<int64_t>{0, 0, 0, 0, 0, 2, 0, 0, 1});  // z is untrained
}

TEST_CASE("options choose the level, the vocabulary and the length") {
  const TempDir folder;
  writeFile(folder.file("t"), "aab aab aab aab aab aab ");
  const auto open = [&](const std::string& options) {
    auto opened = openText(folder.file("t") + options, Split::train);
    PSD_REQUIRE_OK(opened);
    return *std::move(opened);
  };
  const auto characters = open(":level=char,length=4,vocabulary=3");
  CHECK(characters->sampleCount() == 5);  // 21 of 24 characters
  CHECK(characters->describe() == "5 sequences of 4 characters from " + folder.file("t"));
  CHECK(tokensOf(*characters, {0}) == std::vector<int64_t>{1, 1, 0, 2, 1});
  CHECK(describeColumns(open(":length=2")->columns()) == "tokens i64[3] below 2");
}

TEST_CASE("every unusable text gets one line that names it") {
  const TempDir folder;
  const std::string path = folder.file("t");
  writeFile(path, "one two three four five six seven eight nine ten");
  CHECK(problemOf(folder.file("none")).message == folder.file("none") + ": No such file or directory");
  CHECK_THAT(problemOf(folder.path()).message, Contains(folder.path() + ": "));
  CHECK(problemOf("").message == "text: missing file; expected text:FILE");
  CHECK(problemOf(path).message ==
        path + ": its training part has 9 tokens; expected more than a sample's length, 32");
  CHECK(problemOf(path + ":length=1", Split::test).message ==
        path + ": its test part has 1 tokens; expected more than a sample's length, 1");
  CHECK(problemOf(path + ":length=0").message ==
        "data set 'text': length must be a whole number from 1 to 1048576, not '0'");
  CHECK(problemOf(path + ":level=line").message == "data set 'text': level must be word or char, not 'line'");
  CHECK(problemOf(path + ":words=3").message ==
        "data set 'text': 'words' is not an option; expected level, vocabulary, length");
  CHECK(problemOf(path + ":words=3").code == ErrorCode::invalidArgument);
  writeFile(path, "one two \xff");
  CHECK(problemOf(path).message == path + ": byte 8 is not UTF-8");
  CHECK(problemOf(path).code == ErrorCode::io);
  writeFile(path, "");
  CHECK_THAT(problemOf(path).message, Contains("has 0 tokens"));
}

}  // namespace psd

// Files of sparse examples: libsvm and Criteo.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "common/types/category_hash.h"
#include "test/support/catch.h"
#include "test/support/gzip.h"
#include "test/support/temp_dir.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/epoch_samples.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/text_file.h"
#include "trainer/loop/fit.h"

namespace psd::sparse_files_test {
namespace {

using Catch::Matchers::Contains;
using testing::gzip;
using testing::TempDir;
using testing::writeFile;

std::unique_ptr<Dataset> open(const std::string& data, Split split = Split::train, uint64_t badLines = 0) {
  auto opened = openDataset(data, split, {.badLines = badLines});
  PSD_REQUIRE_OK(opened);
  return std::move(*opened);
}

std::string problemOf(const std::string& data, uint64_t badLines = 0, Split split = Split::train) {
  const auto opened = openDataset(data, split, {.badLines = badLines});
  REQUIRE_FALSE(opened.ok());
  return opened.message();
}

Batch fill(const Dataset& data, const std::vector<uint32_t>& indices) {
  Batch batch;
  PSD_REQUIRE_OK(data.fill(indices, batch));
  return batch;
}

Batch all(const Dataset& data) {
  std::vector<uint32_t> indices(data.sampleCount());
  std::iota(indices.begin(), indices.end(), 0u);
  return fill(data, indices);
}

template <class T>
std::vector<T> column(const Batch& batch, std::string_view name) {
  const auto values = batch.values<T>(name);
  return {values.begin(), values.end()};
}

/// FILE:test=FILE, so that no example is held out.
std::string whole(const std::string& format, const std::string& file) {
  return format + ":" + file + ":test=" + file;
}

/// Line i has the id 7 i, and a random one.
std::string numberedLines(uint32_t count) {
  std::string text;
  Random random(1);
  for (uint32_t i = 0; i < count; ++i) {
    text +=
        std::to_string(i % 2) + " " + std::to_string(7 * i) + ":1 " + std::to_string(random.next()) + ":2\n";
  }
  return text;
}

/// Bytes that this process has read from files.
uint64_t readBytes() {
  std::ifstream io("/proc/self/io");
  std::string name;
  uint64_t bytes = 0;
  io >> name >> bytes;
  REQUIRE(name == "rchar:");
  return bytes;
}

/// A line in the format of Criteo: the label and these 39 fields.
std::string criteoLine(char label, const std::vector<std::string>& fields) {
  std::string line(1, label);
  for (const std::string& field : fields) line += "\t" + field;
  return line + "\n";
}

std::vector<std::string> emptyFields() { return std::vector<std::string>(39); }

}  // namespace

TEST_CASE("the ids of categories are those that the documentation defines") {
  // Computed by the formula in Python; test_python_sparse_models.py has the same ones.
  CHECK(categoryId(0, "") == 0xe220a8397b1dcdaf);
  CHECK(categoryId(13, "") == 0x8bda8e3538ab2b9c);
  CHECK(categoryId(13, "68fd1e64") == 0x74c7c944e1257405);
  CHECK(categoryId(38, "68fd1e64") == 0x6e0fec38b533fcaf);
  CHECK(categoryId(14, "a") == 0x4992d2e8e79c69a2);
  CHECK(categoryId(20, "80e26c9bx") == 0x217c56fc453aa590);
  CHECK(categoryId(38, "twenty bytes of text") == 0x707e7a5a7950e542);
}

TEST_CASE("a line of Criteo becomes 39 ids and values") {
  const TempDir folder;
  const std::string file = folder.file("day_0");
  auto fields = emptyFields();
  fields[0] = "5";
  fields[1] = "-2";
  fields[3] = "123456";
  fields[13] = "68fd1e64";
  fields[38] = "longer than eight bytes";
  writeFile(file, criteoLine('1', fields) + criteoLine('0', emptyFields()));
  const auto data = open(whole("criteo", file));
  CHECK(describeColumns(data->columns()) ==
        "ids i64[39], values f32[39], label i64 below 2, numbers f32[13], categories i64[26]");
  CHECK(data->describe() == "2 examples from " + file);
  const Batch batch = all(*data);
  CHECK(column<int64_t>(batch, "label") == std::vector<int64_t>{1, 0});
  const auto ids = column<int64_t>(batch, "ids"), categories = column<int64_t>(batch, "categories");
  const auto values = column<float>(batch, "values"), numbers = column<float>(batch, "numbers");
  for (uint32_t i = 0; i < 39; ++i) {
    CHECK(static_cast<uint64_t>(ids[i]) == categoryId(i, i < 13 ? "" : fields[i]));
    CHECK(static_cast<uint64_t>(ids[39 + i]) == categoryId(i, ""));
    if (i >= 13) CHECK(values[i] == 1);
    if (i >= 13) CHECK(categories[i - 13] == ids[i]);
    if (i < 13) CHECK(values[i] == numbers[i]);
    if (i < 13) CHECK(values[39 + i] == 0);
  }
  CHECK(values[0] == static_cast<float>(std::log1p(5.0)));
  CHECK(values[1] == 0);  // negative
  CHECK(values[2] == 0);  // missing
  CHECK(values[3] == static_cast<float>(std::log1p(123456.0)));
  CHECK(batch.sourceBytes() == std::filesystem::file_size(file));
}

TEST_CASE("categories of every length have the id of their text") {
  const TempDir folder;
  Random random(3);
  std::vector<std::vector<std::string>> lines;
  std::string text;
  for (int line = 0; line < 200; ++line) {
    auto fields = emptyFields();
    for (size_t i = 13; i < 39; ++i) {
      fields[i].resize(random.below(line < 100 ? 10 : 20));
      for (char& c : fields[i]) c = static_cast<char>(32 + random.below(200));
    }
    text += criteoLine('0', fields);
    lines.push_back(fields);
  }
  writeFile(folder.file("day"), text);
  const Batch batch = all(*open(whole("criteo", folder.file("day"))));
  const auto categories = column<int64_t>(batch, "categories");
  for (size_t line = 0; line < lines.size(); ++line) {
    for (uint32_t i = 0; i < 26; ++i) {
      REQUIRE(static_cast<uint64_t>(categories[line * 26 + i]) == categoryId(13 + i, lines[line][13 + i]));
    }
  }
}

TEST_CASE("lines of libsvm become ids and values") {
  const TempDir folder;
  const std::string file = folder.file("a.txt");
  SECTION("of the same number, when all lines have it") {
    writeFile(file, "+1 3:0.5 18446744073709551615:-2e3\n-1\t0:1 7:.25\t\n");
    const auto data = open(whole("libsvm", file));
    CHECK(describeColumns(data->columns()) == "ids i64[2], values f32[2], label i64 below 2");
    const Batch batch = all(*data);
    CHECK(column<int64_t>(batch, "ids") == std::vector<int64_t>{3, -1, 0, 7});
    CHECK(column<float>(batch, "values") == std::vector<float>{0.5f, -2000, 1, 0.25f});
    CHECK(column<int64_t>(batch, "label") == std::vector<int64_t>{1, 0});
  }
  SECTION("padded with zeros to the longest line of the batch") {
    writeFile(file, "1 3:1\r\n0\n0 5:2 6:3 # 1:1 2:2 3:3\n1 1:1 2:1 3:1 4:1");  // no end of the last line
    const auto data = open(whole("libsvm", file));
    CHECK(describeColumns(data->columns()) == "ids i64[any], values f32[any], label i64 below 2");
    const Batch batch = fill(*data, {0, 1});
    CHECK(column<int64_t>(batch, "ids") == std::vector<int64_t>{3, 0});
    CHECK(column<float>(batch, "values") == std::vector<float>{1, 0});
    CHECK(column<float>(fill(*data, {3}), "values") == std::vector<float>{1, 1, 1, 1});
    const auto mixed = column<float>(fill(*data, {2, 0}), "values");
    REQUIRE(mixed.size() % 2 == 0);
    CHECK(std::vector(mixed.begin(), mixed.begin() + 2) == std::vector<float>{2, 3});
    CHECK(std::accumulate(mixed.begin(), mixed.end(), 0.f) == 6);
  }
  SECTION("whose colons in a comment are no features") {
    writeFile(file, "1 3:1 # ::::::::\n0\n");
    CHECK(column<float>(all(*open(whole("libsvm", file))), "values") == std::vector<float>{1, 0});
  }
}

TEST_CASE("numbers are the floats nearest to them") {
  const TempDir folder;
  Random random(5);
  std::string text;
  std::vector<std::string> numbers{
      "0.1", "1e-3", "123456789012345678", "3.4028235e38",    "1e-50", "-0", "+7.", "00000000000000000000.5",
      "1e5", "-.5",  "0.000000000000001",  "99999999999999.9"};
  for (int i = 0; i < 500; ++i) {
    const auto digits = std::to_string(random.next() >> random.below(60));
    const size_t point = random.below(static_cast<uint32_t>(digits.size() + 1));
    numbers.push_back(digits.substr(0, point) + "." + digits.substr(point));
    if (numbers.back() == ".") numbers.back() = "1";
  }
  for (const std::string& number : numbers) text += "0 1:" + number + "\n";
  writeFile(folder.file("a"), text);
  const auto values = column<float>(all(*open(whole("libsvm", folder.file("a")))), "values");
  for (size_t i = 0; i < numbers.size(); ++i) {
    INFO(numbers[i]);
    CHECK(values[i] == static_cast<float>(std::strtod(numbers[i].c_str(), nullptr)));
  }
}

TEST_CASE("a malformed line is refused with its file and number") {
  const TempDir folder;
  const std::string file = folder.file("data.txt");
  struct Case {
    const char *format, *line, *words;
  };
  for (const auto& [format, line, words] :
       {Case{"libsvm", "", "at character 1: ''; the label is 1, +1, 0 or −1"},
        Case{"libsvm", "2 1:1", "at character 1: '2 1:1'; the label is"},
        Case{"libsvm", "nan 1:1", "the label is"},
        Case{"libsvm", "1 1:nan", "at character 3: '1:nan'; the value is a finite number"},
        Case{"libsvm", "1 1:inf", "the value is a finite number"},
        Case{"libsvm", "1 1:-Infinity", "the value is a finite number"},
        Case{"libsvm", "1 1:1e39", "the value is a finite number"},
        Case{"libsvm", "1 1:", "the value is a finite number"},
        Case{"libsvm", "1 1:2x", "the value is a finite number"},
        Case{"libsvm", "1 18446744073709551616:1", "a whole number from 0 to 2^64 − 1 as id"},
        Case{"libsvm", "1 99999999999999999999:1", "a whole number from 0 to 2^64 − 1 as id"},
        Case{"libsvm", "1 -1:1", "a feature is id:value"},
        Case{"libsvm", "1 qid:3 1:1", "a feature is id:value"},
        Case{"libsvm", "1 1:1 2", "at character 7: '2'; a feature is id:value"},
        Case{"criteo", "", "the label is 0 or 1"},
        Case{"criteo", "2", "the label is 0 or 1"},
        Case{"criteo", "1", "a line has a label, 13 numbers and 26 categories"},
        Case{"criteo", "1\tnan", "at character 3: 'nan"},
        Case{"criteo", "1\t1.5", "a number is whole"},
        Case{"criteo", "1\t9223372036854775808", "a number is whole"},
        Case{"criteo", "1\t\t\t\t\t\t\t\t\t\t\t\t\t\tx",
             "a line has a label, 13 numbers and 26 categories"}}) {
    INFO(format << " '" << line << "'");
    const std::string good = std::string(format) == "libsvm" ? "1 1:1\n" : criteoLine('0', emptyFields());
    writeFile(file, good + good + line + "\n" + good);
    const std::string problem = problemOf(whole(format, file));
    CHECK_THAT(problem, Contains(file + ":3: at character "));
    CHECK_THAT(problem, Contains(words));
    CHECK_THAT(problem, Contains("--bad-lines N skips"));
    CHECK(open(whole(format, file), Split::train, 1)->sampleCount() == 3);
  }
  auto tooMany = emptyFields();
  tooMany.push_back("");
  writeFile(file, criteoLine('0', tooMany));
  CHECK_THAT(problemOf(whole("criteo", file)), Contains("a line has 40 fields"));
}

TEST_CASE("malformed lines are skipped up to --bad-lines") {
  const TempDir folder;
  const std::string file = folder.file("a");
  writeFile(file, "x\n1 1:1\n1 1:y\n0 2:1\n1 3:1\n\n");
  CHECK_THAT(problemOf(whole("libsvm", file), 2), Contains(file + ":6: at character 1"));
  CHECK_THAT(problemOf(whole("libsvm", file), 2), Contains("the first after the 2 that --bad-lines skips"));
  ReadProgress last;
  const auto data =
      openDataset(whole("libsvm", file), Split::train,
                  {.badLines = 3, .onProgress = [&](const ReadProgress& progress) { last = progress; }});
  PSD_REQUIRE_OK(data);
  CHECK((*data)->describe() == "3 examples from " + file + " (3 malformed line(s) skipped)");
  CHECK(column<int64_t>(all(**data), "ids") == std::vector<int64_t>{1, 2, 3});
  CHECK(last.done);
  CHECK(last.badLines == 3);
  CHECK_THAT(last.firstBadLine, Contains(file + ":1: "));
  CHECK(last.bytes == std::filesystem::file_size(file));
}

TEST_CASE("bad lines to skip are refused for data without lines") {
  for (const std::string data : {"synthetic:20", "ratings", "points.csv"}) {
    CHECK(problemOf(data, 1) == "--bad-lines applies only to libsvm and criteo");
  }
}

TEST_CASE("the features of a batch are limited") {
  const TempDir folder;
  const std::string file = folder.file("a");
  std::string line = "1";
  for (int i = 0; i < 65'536; ++i) line += " " + std::to_string(i) + ":1";
  for (const std::string& other : {line, std::string("0 1:1")}) {
    writeFile(file, line + "\n" + other + "\n");
    const auto data = open(whole("libsvm", file));
    CHECK(data->batchSizeMax() == 2048);
    CHECK(checkBatchSize(*data, 2048).ok());
    CHECK(checkBatchSize(*data, 2049).message() ==
          "--batch-size: 2049 samples of 2 examples from " + file +
              " could have too many features for a batch; expected at most 2048 samples");
  }
  writeFile(file, line + " 9:1\n");
  CHECK_THAT(problemOf(whole("libsvm", file)), Contains("a line has at most 65536 features"));
}

TEST_CASE("a line of more than 1 MiB is malformed and takes no memory") {
  const TempDir folder;
  const std::string file = folder.file("a");
  const auto longLine = [](size_t bytes) {
    std::string line = "1 1:1";
    line.resize(bytes, ' ');
    return line;
  };
  for (const size_t bytes : {size_t{(1 << 20) + 1}, size_t{(1 << 20) + 300'000}, size_t{9'000'000}}) {
    for (const std::string end : {"\n1 8:1\n", "\n", ""}) {
      INFO(bytes << " " << end.size());
      writeFile(file, "1 7:1\n" + longLine(bytes) + end);
      CHECK_THAT(problemOf(whole("libsvm", file)), Contains(file + ":2: longer than 1048576 bytes"));
      const auto data = open(whole("libsvm", file), Split::train, 1);
      CHECK(column<int64_t>(all(*data), "ids") ==
            (end.size() > 1 ? std::vector<int64_t>{7, 8} : std::vector<int64_t>{7}));
    }
  }
  writeFile(file, longLine(1 << 20) + "\n1 8:1\n");
  CHECK(open(whole("libsvm", file))->sampleCount() == 2);
}

TEST_CASE("compressed files hold the same examples as plain ones, in any order of reading") {
  const TempDir folder;
  const std::string text = numberedLines(500'000);  // several blocks
  REQUIRE(text.size() > 15u << 20);
  const std::string plain = folder.file("a.txt"), one = folder.file("a.gz"), several = folder.file("b.gz");
  writeFile(plain, text);
  writeFile(one, gzip(text));
  // Members of all sizes; one is empty, and lines continue in the next.
  const size_t cut = text.size() / 3;
  writeFile(several, gzip(text.substr(0, cut)) + gzip("") + gzip(text.substr(cut, 100)) +
                         gzip(text.substr(cut + 100)));
  const auto reference = open(whole("libsvm", plain));
  REQUIRE(reference->blocks().size() >= 4);
  for (const std::string& file : {one, several}) {
    const auto data = open(whole("libsvm", file));
    REQUIRE(data->sampleCount() == 500'000);
    CHECK(data->blocks().size() >= 3);
    CHECK(column<int64_t>(all(*data), "ids") == column<int64_t>(all(*reference), "ids"));
    std::vector<uint32_t> some;
    Random random(2);
    for (int i = 0; i < 300; ++i) some.push_back(random.below(500'000));
    const auto ids = column<int64_t>(fill(*data, some), "ids");
    for (size_t i = 0; i < some.size(); ++i) CHECK(ids[2 * i] == 7 * int64_t{some[i]});
  }
}

TEST_CASE("a truncated or damaged compressed file is refused") {
  const TempDir folder;
  const std::string file = folder.file("a.gz");
  const std::string stored = gzip(numberedLines(2000));
  for (const size_t bytes : {size_t{0}, size_t{5}, stored.size() / 2, stored.size() - 1}) {
    INFO(bytes);
    writeFile(file, stored.substr(0, bytes));
    CHECK_THAT(problemOf(whole("libsvm", file)), Contains(file + ": ends within its gzip data"));
  }
  std::string damaged = stored;
  damaged[stored.size() / 2] = static_cast<char>(damaged[stored.size() / 2] ^ 0x55);
  writeFile(file, damaged);
  CHECK_THAT(problemOf(whole("libsvm", file)), Contains(file + ": damaged gzip data"));
  writeFile(file, stored + "rest");
  CHECK_THAT(problemOf(whole("libsvm", file)), Contains(file + ": damaged gzip data"));
  writeFile(file, "1 1:1\n");  // the name says what it is
  CHECK_THAT(problemOf(whole("libsvm", file)), Contains(file + ": damaged gzip data"));
  writeFile(folder.file("b.txt"), stored);
  CHECK_THAT(problemOf(whole("libsvm", folder.file("b.txt"))), Contains("b.txt:1: at character 1"));
}

TEST_CASE("folders, patterns and lists name files") {
  const TempDir folder;
  std::filesystem::create_directory(folder.file("days"));
  std::filesystem::create_directory(folder.file("days/old"));
  for (const auto& [name, id] : std::map<std::string, int>{{"days/part-1", 1},
                                                           {"days/part-0", 0},
                                                           {"days/.hidden", 8},
                                                           {"days/_SUCCESS", 9},
                                                           {"part-2.gz", 2}}) {
    const std::string text = "1 " + std::to_string(id) + ":1\n";
    writeFile(folder.file(name), name.ends_with(".gz") ? gzip(text) : text);
  }
  const auto idsOf = [&](const std::string& files) {
    return column<int64_t>(all(*open("libsvm:" + files + ":test=" + folder.file("days"))), "ids");
  };
  CHECK(idsOf(folder.file("days")) == std::vector<int64_t>{0, 1});
  CHECK(idsOf(folder.file("days/part-*")) == std::vector<int64_t>{0, 1});
  CHECK(idsOf(folder.file("days/part-[1-9]")) == std::vector<int64_t>{1});
  CHECK(idsOf(folder.file("*.gz") + "," + folder.file("days")) == std::vector<int64_t>{2, 0, 1});

  CHECK_THAT(problemOf("libsvm:" + folder.file("none*")), Contains("none*: no file matches"));
  CHECK_THAT(problemOf("libsvm:" + folder.file("none")), Contains("none: No such file"));
  CHECK_THAT(problemOf("libsvm:" + folder.file("days/old")), Contains("old: a folder without files"));
  CHECK_THAT(problemOf("libsvm:"), Contains("libsvm: missing file; expected libsvm:FILES or"));
  CHECK_THAT(problemOf("criteo"), Contains("criteo: missing file"));
  CHECK_THAT(problemOf("libsvm:a:test="), Contains("missing file"));
  CHECK_THAT(problemOf("libsvm:/dev/null"), Contains("/dev/null: not a regular file"));
  writeFile(folder.file("empty"), "");
  CHECK_THAT(problemOf("libsvm:" + folder.file("empty")), Contains("empty: the file is empty"));
  writeFile(folder.file("bad"), "x\n");
  CHECK_THAT(problemOf("libsvm:" + folder.file("bad"), 5), Contains("bad: no line is an example"));
}

TEST_CASE("without test files about a tenth of the examples is held out") {
  const TempDir folder;
  writeFile(folder.file("a"), numberedLines(3000));
  const auto train = open("libsvm:" + folder.file("a")),
             test = open("libsvm:" + folder.file("a"), Split::test);
  CHECK(test->sampleCount() > 200);
  CHECK(test->sampleCount() < 400);
  std::vector<int64_t> ids;
  for (const Dataset* data : {train.get(), test.get()}) {
    const auto more = column<int64_t>(all(*data), "ids");
    for (size_t i = 0; i < more.size(); i += 2) ids.push_back(more[i]);
  }
  std::ranges::sort(ids);
  REQUIRE(ids.size() == 3000);
  for (size_t i = 0; i < ids.size(); ++i) REQUIRE(ids[i] == 7 * static_cast<int64_t>(i));
  writeFile(folder.file("one"), "1 1:1\n");
  const bool heldOut = !openDataset("libsvm:" + folder.file("one"), Split::train, {}).ok();
  CHECK_THAT(problemOf("libsvm:" + folder.file("one"), 0, heldOut ? Split::train : Split::test),
             Contains("none of its 1 example(s) is one to"));
}

TEST_CASE("a file that changes after it was opened is reported") {
  const TempDir folder;
  const std::string file = folder.file("a");
  writeFile(file, numberedLines(10));
  const auto data = open(whole("libsvm", file));
  writeFile(file, numberedLines(9));
  Batch batch;
  const Status filled = data->fill(std::vector<uint32_t>{1}, batch);
  CHECK_THAT(filled.message(), Contains(file + ": has changed since it was opened"));
  std::filesystem::remove(file);
  CHECK_THAT(data->fill(std::vector<uint32_t>{1}, batch).message(), Contains(file + ": No such file"));
}

TEST_CASE("a comma without a file beside it is refused") {
  CHECK_THAT(problemOf("libsvm:a,"), Contains("a,: a file's name is missing beside a comma"));
}

TEST_CASE("an epoch in blocks reads each block once") {
  const TempDir folder;
  const std::string file = folder.file("a");
  writeFile(file, numberedLines(3'000'000));  // some 25 blocks, in groups of eight
  const auto data = open(whole("libsvm", file));
  REQUIRE(data->blocks().size() > 20);
  EpochSamples samples(1, *data, Rank{0}, 1);
  Batch batch;
  const uint64_t before = readBytes();
  for (uint64_t begin = 0; begin < samples.partSize(); begin += 64) {
    const uint64_t count = std::min<uint64_t>(64, samples.partSize() - begin);
    PSD_REQUIRE_OK(data->fill(samples.take(0, begin, count), batch));
  }
  const uint64_t read = readBytes() - before;
  CHECK(read >= std::filesystem::file_size(file));
  CHECK(read < std::filesystem::file_size(file) + (1u << 20));
}

TEST_CASE("a file that grows while it is read is reported") {
  const TempDir folder;
  for (const std::string name : {"a", "a.gz"}) {
    const std::string file = folder.file(name), text = numberedLines(30'000);
    const std::string stored = name == "a" ? text : gzip(text);
    REQUIRE(stored.size() > (256u << 10));
    writeFile(file, stored);
    const auto opened = TextFile::open(file);
    PSD_REQUIRE_OK(opened);
    std::vector<char> some(1000);
    PSD_REQUIRE_OK((*opened)->read(some));
    writeFile(file, stored + stored);
    Result<size_t> got = size_t{1};
    while (got.ok() && *got != 0) got = (*opened)->read(some);
    CHECK(got.message() == file + ": has changed since it was opened");
  }
}

TEST_CASE("the parts of an epoch in blocks are disjoint, cover all samples and touch few blocks at a time") {
  const TempDir folder;
  writeFile(folder.file("a"), numberedLines(1'500'000));
  const auto data = open(whole("libsvm", folder.file("a")));
  const auto blocks = data->blocks();
  REQUIRE(blocks.size() > BlockOrder::kGroupBlocks);
  const auto blockOf = [&](uint32_t sample) {
    return std::ranges::upper_bound(blocks, sample) - blocks.begin();
  };
  std::vector<std::vector<uint32_t>> orders;
  for (const uint32_t worldSize : {1u, 3u}) {
    std::vector<uint32_t> together;
    for (uint32_t rank = 0; rank < worldSize; ++rank) {
      EpochSamples samples(4, *data, Rank{rank}, worldSize);
      for (uint64_t begin = 0; begin < samples.partSize(); begin += 1000) {
        const auto part = samples.take(0, begin, std::min<uint64_t>(1000, samples.partSize() - begin));
        together.insert(together.end(), part.begin(), part.end());
      }
    }
    orders.push_back(together);
    std::ranges::sort(together);
    REQUIRE(together.size() == data->sampleCount());
    for (uint32_t i = 0; i < together.size(); ++i) REQUIRE(together[i] == i);
  }
  CHECK(orders[0] == orders[1]);  // trainers divide the order; more of them do not change it
  std::map<long, size_t> last;
  for (size_t i = 0; i < orders[0].size(); ++i) last[blockOf(orders[0][i])] = i;
  std::map<long, size_t> open;
  size_t most = 0;
  for (size_t i = 0; i < orders[0].size(); ++i) {
    const long block = blockOf(orders[0][i]);
    open[block] = i;
    most = std::max(most, open.size());
    if (last[block] == i) open.erase(block);
  }
  CHECK(most == BlockOrder::kGroupBlocks);
  EpochSamples again(4, *data, Rank{0}, 1), other(5, *data, Rank{0}, 1);
  const auto first = again.take(0, 0, 500);
  CHECK(std::ranges::equal(first, std::span(orders[0]).first(500)));
  CHECK_FALSE(std::ranges::equal(other.take(0, 0, 500), std::span(orders[0]).first(500)));
  CHECK_FALSE(std::ranges::equal(again.take(1, 0, 500), std::span(orders[0]).first(500)));
  CHECK(std::ranges::equal(again.take(0, 0, 500), std::span(orders[0]).first(500)));
}

}  // namespace psd::sparse_files_test

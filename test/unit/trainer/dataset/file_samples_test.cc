// Data sets from a user's own files.
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/dataset/dataset_list.h"

namespace psd::file_samples_test {
namespace {

using Catch::Matchers::Contains;
using testing::TempDir;
using testing::writeFile;

template <class Number>
std::string bytesOf(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::string safetensors(const std::string& header, const std::string& data) {
  return bytesOf(std::vector<uint64_t>{header.size()}) + header + data;
}

std::string npy(const std::string& type, const std::string& shape, const std::string& data,
                const std::string& fortran = "False") {
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}), }}\n", type, fortran, shape);
  return "\x93NUMPY\x01" + std::string(1, '\0') +
         bytesOf(std::vector<uint16_t>{static_cast<uint16_t>(header.size())}) + header + data;
}

std::unique_ptr<Dataset> open(const std::string& data, Split split = Split::train) {
  auto opened = openDataset(data, split, {.seed = 1});
  PSD_REQUIRE_OK(opened);
  return std::move(*opened);
}

std::string problemOf(const std::string& data, Split split = Split::train) {
  const auto opened = openDataset(data, split, {.seed = 1});
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.message().find('\n') == std::string::npos);
  return opened.message();
}

template <class Number>
std::vector<Number> valuesOf(const Dataset& data, const std::string& column, std::vector<uint32_t> samples) {
  Batch batch;
  PSD_REQUIRE_OK(data.fill(samples, batch));
  const auto values = batch.values<Number>(column);
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("tensors of a safetensors file are columns") {
  const TempDir folder;
  const std::string train = folder.file("train.safetensors"), test = folder.file("test.safetensors");
  const std::string header =
      R"({"y":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},"__metadata__":{"a":"b"},)"
      R"("x":{"dtype":"F32","shape":[3,2],"data_offsets":[24,48]},"b":{"dtype":"BOOL","shape":[3],"data_offsets":[48,51]}})";
  const auto fileOf = [&](const std::vector<int64_t>& labels, float first) {
    return safetensors(header, bytesOf(labels) + bytesOf(std::vector<float>{first, 1, 2, 3, 4, 5}) +
                                   std::string("\0\1\1", 3));
  };
  writeFile(train, fileOf({2, 0, 1}, 0.5f));
  writeFile(test, fileOf({0, 0, 4}, 7));
  const auto data = open(train + ":test=" + test),
             tests = open("files:" + train + ":test=" + test, Split::test);
  CHECK(describeColumns(data->columns()) == "b u8 below 2, x f32[2], y i64 below 5");  // of both
  CHECK(data->columns() == tests->columns());
  CHECK(data->describe() == "3 rows from " + train);
  CHECK(tests->describe() == "3 rows from " + test);
  CHECK(data->sampleCount() == 3);
  CHECK(valuesOf<int64_t>(*data, "y", {2, 0}) == std::vector<int64_t>{1, 2});
  CHECK(valuesOf<float>(*data, "x", {1, 0}) == std::vector<float>{2, 3, 0.5, 1});
  CHECK(valuesOf<uint8_t>(*data, "b", {0, 1, 2}) == std::vector<uint8_t>{0, 1, 1});
  CHECK(valuesOf<float>(*tests, "x", {0}) == std::vector<float>{7, 1});
  // With a negative number there is no bound.
  writeFile(test, fileOf({0, -1, 4}, 7));
  CHECK(describeColumns(open(train + ":test=" + test)->columns()) == "b u8 below 2, x f32[2], y i64");
}

TEST_CASE("numpy arrays are columns named after their files") {
  const TempDir folder;
  writeFile(folder.file("x.npy"), npy("<f8", "20, 2, 1", bytesOf(std::vector<double>(40, 1.5))));
  std::vector<int32_t> numbers(20);
  for (int32_t i = 0; i < 20; ++i) numbers[static_cast<size_t>(i)] = i;
  writeFile(folder.file("n.npy"), npy("<i4", "20L,", bytesOf(numbers), "True"));  // in Python 2's format
  const std::string files = folder.file("x.npy") + "," + folder.file("n.npy");
  const auto train = open(files), test = open(files, Split::test);
  CHECK(describeColumns(train->columns()) == "n i32 below 20, x f64[2,1]");
  // Each row is in one of the splits.
  std::multiset<int32_t> seen;
  for (const Dataset* data : {train.get(), test.get()}) {
    for (uint32_t i = 0; i < data->sampleCount(); ++i) seen.insert(valuesOf<int32_t>(*data, "n", {i})[0]);
  }
  CHECK(seen == std::multiset<int32_t>(numbers.begin(), numbers.end()));
  CHECK(test->sampleCount() > 0);
  CHECK(test->sampleCount() < 6);
  CHECK(valuesOf<double>(*train, "x", {3}) == std::vector<double>{1.5, 1.5});
}

TEST_CASE("a file of comma-separated numbers has the columns of its first line") {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  writeFile(path, "\xef\xbb\xbfn,\"x\", whole f32 ,big i64\r\n1,2,3,9007199254740993\r\n2,0.5,-4,1\r\n");
  const auto data = open(path + ":test=" + path);
  CHECK(describeColumns(data->columns()) ==
        "big i64 below 9007199254740994, n i64 below 3, whole f32, x f32");
  CHECK(valuesOf<int64_t>(*data, "n", {0, 1}) == std::vector<int64_t>{1, 2});
  CHECK(valuesOf<float>(*data, "x", {0, 1}) == std::vector<float>{2, 0.5});
  CHECK(valuesOf<float>(*data, "whole", {1}) == std::vector<float>{-4});
  CHECK(valuesOf<int64_t>(*data, "big", {0}) == std::vector<int64_t>{9007199254740993});
}

TEST_CASE("numbers and lines are read as programs write them") {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  writeFile(path,
            "\xef\xbb\xbf,\"a, \"\"b\"\"\", y\t,text\r\n0, +0.5,\"-1\",\"one\ntwo, \"\"three\"\"\"\r\n"
            "1,1e-46 ,+2,\r\n2,4.9406564584124654e-324,3,5\" disk\n\r\n \n");
  const auto data = open(path + ":test=" + path);
  CHECK(describeColumns(data->columns()) == "a, \"b\" f32, y i64");
  CHECK(valuesOf<float>(*data, "a, \"b\"", {0, 1, 2}) == std::vector<float>{0.5, 0, 0});
  CHECK(valuesOf<int64_t>(*data, "y", {0, 1, 2}) == std::vector<int64_t>{-1, 2, 3});
  CHECK(data->skipReason("text") == path + ":2:14: 'one?two, \"three\"' is not a number that f32 can hold");
  CHECK(data->skipReason("y").empty());
}

TEST_CASE("a column that cannot be read is skipped, and the reason is known") {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"a,b\n1,2\n3,x\n", ":3:3: 'x' is not a number that f32 can hold"},
           {"a,b\n1,2\n3,\n", ":3:3: '' is not a number that f32 can hold"},
           {"b,a\nnan,2\n", ":2:1: 'nan' is not a number that f32 can hold"},
           {"b,a\n1e39,2\n", ":2:1: '1e39' is not a number that f32 can hold"},
           {"b i64,a\n1.5,2\n", ":2:1: '1.5' is not a whole number; column 'b' is i64"},
           {"b,a,b\n1,2,3\n", ":1:5: 'b' is the name of two columns"}}) {
    INFO(text);
    writeFile(path, text);
    const auto data = open(path + ":test=" + path);
    CHECK(data->columns().size() == 1);
    CHECK(data->skipReason("b") == path + why);
    CHECK(data->skipReason("c").empty());
  }
}

TEST_CASE("an error in a file of numbers is named by line and column") {
  const TempDir folder;
  const std::string path = folder.file("a.csv");
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"a,b\n1\n", ":2:1: 1 fields; expected 2, the number of names"},
           {"a,b\n1,2,3\n", ":2:5: more than 2 fields"},
           {"a,b\n", "no rows"},
           {"", ":1:1: no rows"},
           {"\n\n", ":1:1: no rows"},
           {"a,a\n1,2\n", ":1:3: 'a' is the name of two columns"},
           {"a\n1e99\n", ":2:1: '1e99' is not a number that f32 can hold"},
           {"a,b\n1,2\n\n3,4\n", ":3:1: 1 fields"},
           {"a\n1\n\n2\n", ":3:1: '' is not a number"},
           {"a,b\n1,\"2\n3,4\n", ":2:3: a quoted field has no closing quote"},
           {"a,b\n\"1\"2,3\n", ":2:1: text follows a closing quote"}}) {
    INFO(text);
    writeFile(path, text);
    CHECK_THAT(problemOf(path), Contains(path + words) || Contains(words));
  }
  CHECK_THAT(problemOf(folder.file("none.csv")), Contains("none.csv") && Contains("No such file"));
}

TEST_CASE("an error in a safetensors file is named") {
  const TempDir folder;
  const std::string path = folder.file("a.safetensors");
  const auto problemWith = [&](const std::string& header) {
    writeFile(path, safetensors(header, std::string(24, '\0')));
    return problemOf(path);
  };
  writeFile(path, "short");
  CHECK_THAT(problemOf(path), Contains(path + ": not a safetensors file of columns: shorter than 8 bytes"));
  writeFile(path, bytesOf(std::vector<uint64_t>{1ull << 40}));
  CHECK_THAT(problemOf(path), Contains("its header length does not fit the file"));
  const std::pair<const char*, const char*> wrong[] = {
      {"[", "its header, line 1, column 2: expected a value"},
      {R"({"x":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},"x":{}})", "its header: x: appears twice"},
      {"{}", "it holds no tensor"},
      {R"({"x":{"dtype":"BF16","shape":[12],"data_offsets":[0,24]}})", "tensor 'x' is of BF16; expected f32"},
      {R"({"x":{"dtype":"F32","shape":[5],"data_offsets":[0,24]}})",
       "tensor 'x': data_offsets do not match its shape"},
      {R"({"x":{"dtype":"F32","shape":[6],"data_offsets":[0,28]}})",
       "tensor 'x': data_offsets lie outside the file"},
      {R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", "has no rows"},
      {R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", "has no rows"},
      {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,24]}})",
       "data_offsets do not match its shape"},
      {R"({"x":{"dtype":"F32","shape":[-6],"data_offsets":[0,24]}})",
       "its header is not a valid safetensors header"},
  };
  for (const auto& [header, problem] : wrong) {
    INFO(header);
    CHECK_THAT(problemWith(header), Contains(problem));
  }
}

TEST_CASE("tensors that cannot be columns beside others are skipped, and the reason is known") {
  const TempDir folder;
  const std::string path = folder.file("a.safetensors");
  writeFile(path, safetensors(R"({"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                              R"("y":{"dtype":"U8","shape":[3],"data_offsets":[12,15]},)"
                              R"("half":{"dtype":"BF16","shape":[3],"data_offsets":[15,21]},)"
                              R"("none":{"dtype":"F32","shape":[0],"data_offsets":[21,21]},)"
                              R"("one":{"dtype":"F32","shape":[],"data_offsets":[21,25]},)"
                              R"("mean":{"dtype":"F32","shape":[2],"data_offsets":[25,33]}})",
                              std::string(33, '\0')));
  const auto data = open(path + ":test=" + path);
  CHECK(describeColumns(data->columns()) == "x f32, y u8 below 1");
  CHECK(data->skipReason("half") ==
        path + ": tensor 'half' is of BF16; expected f32, f64, i32, i64, u8 or bool");
  CHECK_THAT(data->skipReason("none"), Contains("tensor 'none' has no rows"));
  CHECK_THAT(data->skipReason("one"), Contains("tensor 'one' has no rows"));
  CHECK(data->skipReason("mean") == "it has 2 rows, but most columns have 3");
}

TEST_CASE("columns that differ between the files of the two splits are skipped, and the reason is known") {
  const TempDir folder;
  const std::string train = folder.file("train.csv"), test = folder.file("test.csv");
  writeFile(train, "x,mine,kind,text\n1,2,3,a\n2,3,4,b\n");
  writeFile(test, "yours,x,kind,text\n1,2,0.5,1\n");
  const auto data = open(train + ":test=" + test), tests = open(train + ":test=" + test, Split::test);
  CHECK(describeColumns(data->columns()) == "x i64 below 3");
  CHECK(valuesOf<int64_t>(*tests, "x", {0}) == std::vector<int64_t>{2});
  CHECK(data->skipReason("mine") == "there is none to test");
  CHECK(tests->skipReason("yours") == "there is none to train on");
  CHECK(data->skipReason("kind") == "it is i64 to train on, but f32 to test");
  CHECK(tests->skipReason("text") == train + ":2:7: 'a' is not a number that f32 can hold");
}

TEST_CASE("an error in an array, or in the combination of two files, is named") {
  const TempDir folder;
  const std::string a = folder.file("a.npy"), b = folder.file("b.npy");
  const auto problemWith = [&](const std::string& bytes) {
    writeFile(a, bytes);
    return problemOf(a);
  };
  CHECK_THAT(problemWith("no array at all"), Contains(a + ": not a numpy.save() file"));
  CHECK_THAT(problemWith(std::string("\x93NUMPY\x01\0\xff\xff", 10)), Contains("header is damaged"));
  CHECK_THAT(problemWith(npy("<f4", "x,", "")), Contains("header is damaged"));
  CHECK_THAT(problemWith(npy("<f4", "2, 2", std::string(16, '\0'), "True")),
             Contains("Fortran order; expected C order"));
  CHECK_THAT(problemWith(npy(">f4", "2,", std::string(8, '\0'))),
             Contains("a.npy: the array is of >f4; expected f32"));
  CHECK_THAT(problemWith(npy("<f4", "2,", std::string(7, '\0'))),
             Contains("larger than the file") || Contains("7 bytes"));
  CHECK_THAT(problemWith(npy("<f4", "2,", std::string(12, '\0'))), Contains("has 12 bytes; expected 8"));
  writeFile(a, npy("<f4", "2,", std::string(8, '\0')));
  CHECK_THAT(problemOf(a, Split::test), Contains("a.npy: none of its 2 rows is to test; expected more rows"));
  CHECK_THAT(problemOf(a + "," + a), Contains("a second column 'a'"));
  CHECK_THAT(problemOf(a + "," + folder.file("b.csv") + "," + a),
             Contains("b.csv' is not a file of samples"));
  writeFile(b, npy("<f4", "2, 3", std::string(24, '\0')));
  CHECK(problemOf(a + ":test=" + b) ==
        a + " and " + b + " have no column in common: 'a': there is none to test");
  CHECK_THAT(problemOf("files:"), Contains("is not a file of samples; expected FILE.safetensors"));
}

}  // namespace psd::file_samples_test

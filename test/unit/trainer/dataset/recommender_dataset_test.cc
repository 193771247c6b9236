// Ratings, clicks and documents, from files and synthetic.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/task/score.h"

namespace psd::recommender_dataset_test {
namespace {

using Catch::Matchers::Contains;
using testing::TempDir;
using testing::writeFile;

std::unique_ptr<Dataset> open(const std::string& data, Split split = Split::train, uint64_t seed = 1) {
  auto opened = openDataset(data, split, {.seed = seed});
  PSD_REQUIRE_OK(opened);
  return std::move(*opened);
}

Batch all(const Dataset& data) {
  std::vector<uint32_t> indices(data.sampleCount());
  std::iota(indices.begin(), indices.end(), 0u);
  Batch batch;
  PSD_REQUIRE_OK(data.fill(indices, batch));
  return batch;
}

template <class T>
std::vector<T> column(const Batch& batch, const char* name) {
  const auto values = batch.values<T>(name);
  return {values.begin(), values.end()};
}

const std::string kHeader = "userId,movieId,rating,timestamp\n";

/// The error for a ratings.csv with this content, without the folder prefix.
std::string problemOf(const std::string& text) {
  const TempDir folder;
  writeFile(folder.file("ratings.csv"), text);
  const auto opened = openDataset("movielens:" + folder.path(), Split::train, {.seed = 1});
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.error().code == ErrorCode::io);
  const std::string message = opened.message();
  return message.substr(message.find("ratings.csv"));
}

}  // namespace

TEST_CASE("MovieLens's ratings are read, with a tenth of them as test set") {
  const TempDir folder;
  std::string text = kHeader;
  for (int i = 0; i < 1000; ++i) {
    text += std::to_string(i % 50 + 1) + "," + std::to_string(i * 1000003) + "," +
            std::to_string(i % 10 + 1) + ".5," + std::to_string(964982703 + i) + (i % 2 == 0 ? "\n" : "\r\n");
  }
  text.resize(text.size() - 1);  // the last line ends with the file
  writeFile(folder.file("ratings.csv"), text);
  const auto train = open("movielens:" + folder.path()),
             test = open("movielens:" + folder.path(), Split::test);
  CHECK(train->describe() == std::to_string(train->sampleCount()) + " ratings from " + folder.path());
  CHECK(train->sampleCount() + test->sampleCount() == 1000);
  CHECK(test->sampleCount() > 60);
  CHECK(test->sampleCount() < 140);
  CHECK(describeColumns(train->columns()) == "user i64, item i64, rating f32");
  const Batch batch = all(*train), rest = all(*test);
  std::set<int64_t> items;
  for (const Batch* part : {&batch, &rest}) {
    for (size_t n = 0; n < part->size(); ++n) {
      const int64_t i = part->values<int64_t>("item")[n] / 1000003;
      items.insert(i);
      CHECK(part->values<int64_t>("user")[n] == i % 50 + 1);
      CHECK(part->values<float>("rating")[n] == static_cast<float>(i % 10) + 1.5f);
    }
  }
  CHECK(items.size() == 1000);
}

TEST_CASE("an error in a file of ratings is named by line and column") {
  const std::string good = kHeader + "1,1,4.0,964982703\n";
  const std::string first = "; expected a line with userId,movieId,rating first";
  CHECK(problemOf("") == "ratings.csv:1:1: no column 'userId'" + first);
  CHECK(problemOf("userId,rating,when\n") == "ratings.csv:1:15: no column 'movieId'" + first);
  CHECK(problemOf("userId,movieId,rating,userId\n") ==
        "ratings.csv:1:23: 'userId' is the name of two columns");
  CHECK_THAT(problemOf(kHeader), Contains("0 ratings to train on; expected 1 to"));
  CHECK(problemOf(good + "1,3,4.0\n") == "ratings.csv:3:5: fewer than 4 fields, the number of names");
  CHECK(problemOf(good + "1,3,4.0,9,\n2,2,2,2") ==
        "ratings.csv:3:11: more than 4 fields, the number of names");
  CHECK(problemOf(good + "\n" + good) ==
        "ratings.csv:3:1: '' is not a whole number from 0 to 9223372036854775807");
  CHECK(problemOf(good + "x,3,4.0,9\n") ==
        "ratings.csv:3:1: 'x' is not a whole number from 0 to 9223372036854775807");
  CHECK_THAT(problemOf(good + "1,-3,4.0,9\n"), Contains("ratings.csv:3:3: '-3' is not a whole number"));
  CHECK_THAT(problemOf(good + "1,9223372036854775808,4.0,9\n"), Contains("ratings.csv:3:3: '92233"));
  CHECK_THAT(problemOf(good + "1,3 3,4.0,9\n"), Contains("ratings.csv:3:3: '3 3' is not a whole number"));
  CHECK(problemOf(good + "1,3,good,9\n") == "ratings.csv:3:5: 'good' is not a rating; expected a number");
  CHECK_THAT(problemOf(good + "1,3,,9\n"), Contains("ratings.csv:3:5: '' is not a rating"));
  CHECK_THAT(problemOf(good + "1,3,nan,9\n"), Contains("ratings.csv:3:5: 'nan' is not a rating"));
  CHECK_THAT(problemOf(good + "1,3,1e99,9\n"), Contains("ratings.csv:3:5: '1e99' is not a rating"));
  CHECK_THAT(problemOf(good + "1,\x1b[2J,4.0,9\n"),
             Contains("ratings.csv:3:3: '?[2J' is not a whole number"));
  CHECK_THAT(openDataset("movielens:/nowhere", Split::train, {.seed = 1}).message(),
             Contains("/nowhere/ratings.csv: No such file"));
  CHECK_THAT(openDataset("movielens", Split::train, {.seed = 1}).message(),
             Contains("expected movielens:DIR"));
}

TEST_CASE("ratings are read as programs write them") {
  const TempDir folder;
  std::string plain = kHeader, other = "\xef\xbb\xbf\"\",timestamp,rating,\"movieId\",userId,comment\r\n";
  for (int i = 0; i < 30; ++i) {
    const std::string item = std::to_string(i % 7), value = i == 0 ? "1e-46" : "0.5";
    plain += "3," + item + "," + value + ",9\n";
    other +=
        std::to_string(i) + ",yesterday,+" + value + ", " + item + " ,\"3\",\"good, or\n\"\"so\"\"\"\r\n";
  }
  writeFile(folder.file("ratings.csv"), plain);
  const Batch expected = all(*open("movielens:" + folder.path()));
  writeFile(folder.file("ratings.csv"), other + "\r\n\n");
  const Batch batch = all(*open("movielens:" + folder.path()));
  CHECK(expected.size() > 20);
  for (const char* name : {"user", "item"}) {
    CHECK(column<int64_t>(batch, name) == column<int64_t>(expected, name));
  }
  CHECK(column<float>(batch, "rating") == column<float>(expected, "rating"));
}

TEST_CASE("synthetic ratings are a function of the seed, and users and items have ids of any size") {
  const std::string data = "ratings:samples=9000,users=50,items=20,noise=0.5";
  const Batch batch = all(*open(data)), test = all(*open(data, Split::test));
  CHECK(batch.size() == 9000);
  CHECK(test.size() == 1000);
  CHECK(column<float>(batch, "rating") == column<float>(all(*open(data)), "rating"));
  CHECK(column<float>(batch, "rating") != column<float>(all(*open(data, Split::train, 2)), "rating"));
  const auto users = column<int64_t>(batch, "user"), items = column<int64_t>(batch, "item");
  const std::set<int64_t> distinct(users.begin(), users.end());
  CHECK(distinct.size() == 50);
  CHECK(*distinct.begin() >= 0);
  CHECK(*distinct.rbegin() > INT64_MAX / 2);
  const auto testUsers = column<int64_t>(test, "user");
  CHECK(std::set<int64_t>(testUsers.begin(), testUsers.end()) == distinct);

  // Repeated ratings of one user and item differ by the noise alone.
  std::map<std::pair<int64_t, int64_t>, std::vector<double>> repeats;
  const auto ratings = column<float>(batch, "rating");
  for (size_t i = 0; i < ratings.size(); ++i) repeats[{users[i], items[i]}].push_back(ratings[i]);
  double squares = 0, freedom = 0;
  for (const auto& [pair, values] : repeats) {
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    for (const double value : values) squares += std::pow(value - mean, 2);
    freedom += static_cast<double>(values.size()) - 1;
  }
  CHECK(std::abs(std::sqrt(squares / freedom) - 0.5) < 0.02);
}

TEST_CASE("wrong options of synthetic sets are named") {
  for (const auto& [data, words] :
       {std::pair<const char*, const char*>{"ratings:samples=8", "samples must be"},
        {"ratings:noise=-1", "noise must be a number from 0"},
        {"ratings:films=3", "'films' is not an option; expected samples"},
        {"clicks:samples=ten", "samples must be a whole number from 10"},
        {"clicks:scale=0", "scale must be a whole number from 1"},
        {"documents:length=0", "length must be a whole number from 1"},
        {"documents:word=3", "word"}}) {
    CHECK_THAT(openDataset(data, Split::train, {.seed = 1}).message(), Contains(words));
  }
}

TEST_CASE("synthetic clicks are a function of seed and number for every reader") {
  const auto data = open("clicks:samples=400,scale=1000"), same = open("clicks:samples=400,scale=1000");
  CHECK(data->describe() == "400 synthetic clicks");
  CHECK(describeColumns(data->columns()) ==
        "numbers f32[13], categories i64[26], label i64 below 2, probability f32");
  Batch one, whole = all(*data);
  PSD_REQUIRE_OK(same->fill(std::vector<uint32_t>{399, 7}, one));
  const auto row = [](const Batch& batch, size_t n) {
    const auto ids = batch.values<int64_t>("categories").subspan(n * 26, 26);
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  CHECK(row(one, 0) == row(whole, 399));
  CHECK(row(one, 1) == row(whole, 7));
  CHECK(one.values<float>("numbers")[13] == whole.values<float>("numbers")[7 * 13]);
  CHECK(one.values<float>("probability")[0] == whole.values<float>("probability")[399]);
  CHECK(row(all(*open("clicks:samples=400,scale=1000", Split::test)), 7) != row(whole, 7));
  CHECK(row(all(*open("clicks:samples=400,scale=1000", Split::train, 2)), 7) != row(whole, 7));
}

TEST_CASE("clicks are as frequent as the teacher says, and a few ids make up most of a category") {
  const Batch batch = all(*open("clicks:samples=20000"));
  const auto labels = column<int64_t>(batch, "label");
  const auto probabilities = column<float>(batch, "probability");
  double expected = 0, variance = 0;
  Metric teacher = Metric::auc("auc");
  for (size_t i = 0; i < labels.size(); ++i) {
    expected += probabilities[i];
    variance += probabilities[i] * (1 - probabilities[i]);
    teacher.count(probabilities[i], labels[i] != 0);
  }
  const double clicks = static_cast<double>(std::accumulate(labels.begin(), labels.end(), int64_t{0}));
  CHECK(std::abs(clicks - expected) < 4 * std::sqrt(variance));
  CHECK(clicks > 0.05 * 20000);
  CHECK(clicks < 0.5 * 20000);
  CHECK(teacher.value() > 0.8);
  CHECK(teacher.value() < 0.95);

  // Category 2 has 101,312 ids. With k^-1.05 the most frequent would have a share of 0.11 and the 16 most
  // frequent 0.34; by octaves they have 0.08 and 0.30.
  std::map<int64_t, int> counts;
  for (size_t i = 0; i < labels.size(); ++i) ++counts[batch.values<int64_t>("categories")[i * 26 + 2]];
  std::vector<int> ordered;
  for (const auto& [id, count] : counts) ordered.push_back(count);
  std::ranges::sort(ordered, std::greater());
  CHECK(std::abs(ordered[0] / 20000.0 - 0.08) < 0.02);
  const double head = std::accumulate(ordered.begin(), ordered.begin() + 16, 0);
  CHECK(std::abs(head / 20000.0 - 0.3) < 0.04);
  CHECK(counts.size() > 5000);
  std::set<int64_t> few;
  for (size_t i = 0; i < labels.size(); ++i) few.insert(batch.values<int64_t>("categories")[i * 26 + 8]);
  CHECK(few.size() == 2);
}

TEST_CASE("synthetic documents are unit vectors of few common words, of two classes, for every reader") {
  const std::string some = "documents:samples=2000,words=1000,length=20";
  const auto data = open(some), same = open(some);
  CHECK(data->describe() == "2000 synthetic documents");
  const Batch whole = all(*data);
  Batch backwards;
  std::vector<uint32_t> indices{1999, 7, 0};
  PSD_REQUIRE_OK(same->fill(indices, backwards));
  const auto words = column<int64_t>(whole, "words"), labels = column<int64_t>(whole, "label");
  const auto weights = column<float>(whole, "weights");
  const auto rowsOf = [](const Batch& batch, size_t sample) {
    const auto of = column<int64_t>(batch, "words");
    return std::vector<int64_t>(of.begin() + static_cast<ptrdiff_t>(sample * 20),
                                of.begin() + static_cast<ptrdiff_t>(sample * 20 + 20));
  };
  for (size_t i = 0; i < indices.size(); ++i) {
    CHECK(rowsOf(backwards, i) == rowsOf(whole, indices[i]));
    CHECK(column<int64_t>(backwards, "label")[i] == labels[indices[i]]);
  }
  CHECK(column<int64_t>(all(*open(some, Split::test)), "words").size() == 400 * 20);
  CHECK(rowsOf(all(*open(some, Split::test)), 7) != rowsOf(whole, 7));
  CHECK(rowsOf(all(*open(some, Split::train, 2)), 7) != rowsOf(whole, 7));

  for (size_t sample = 0; sample < 2000; ++sample) {
    double squares = 0;
    for (size_t k = 0; k < 20; ++k) squares += double{weights[sample * 20 + k]} * weights[sample * 20 + k];
    CHECK(std::abs(squares - 1) < 1e-5);
  }
  std::map<int64_t, int> counts;
  for (const int64_t word : words) {
    REQUIRE(word >= 0);
    REQUIRE(word < 1000);
    counts[word]++;
  }
  CHECK(counts[0] > counts[100]);
  const auto ones = std::accumulate(labels.begin(), labels.end(), int64_t{0});
  CHECK(ones > 400);
  CHECK(ones < 1600);
}

}  // namespace psd::recommender_dataset_test

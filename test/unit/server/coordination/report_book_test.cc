#include "server/coordination/report_book.h"

#include <limits>

#include "test/support/catch.h"

namespace psd::report_book_test {
namespace {

TEST_CASE("names of reported values are short, plain and unique, and there are at most 16") {
  CHECK(validateReport({}).ok());
  const auto check = [](const std::vector<std::string>& names) {
    std::vector<NamedValue> values;
    for (const std::string& name : names) values.push_back({name, 1});
    return validateReport(values);
  };
  CHECK(check({"loss", "eval/accuracy", "a.b-c_9"}).ok());
  CHECK(check({std::string(64, 'x')}).ok());
  CHECK_FALSE(check({std::string(65, 'x')}).ok());
  for (const char* wrong : {"", "a b", "a\"", "a\n", "ä", "{"}) CHECK_FALSE(check({wrong}).ok());
  CHECK(check({"loss", "loss"}).message() == "a report has 'loss' twice");
  std::vector<std::string> many;
  for (size_t i = 0; i < 17; i++) many.push_back("n" + std::to_string(i));
  CHECK(check(many).message() == "a report has at most 16 values, not 17");
  many.pop_back();
  CHECK(check(many).ok());
}

TEST_CASE("a series keeps its first point, ever fewer of those between, and its span, in bounded memory") {
  ThinnedSeries series;
  constexpr uint64_t kPoints = 100'000;
  for (uint64_t i = 0; i < kPoints; i++) series.add({static_cast<double>(i), i, 0.5});
  const auto& points = series.points();
  CHECK(points.size() <= ThinnedSeries::kPointsMax);
  CHECK(points.size() > ThinnedSeries::kPointsMax / 4);
  CHECK(points.front().step == 0);
  CHECK(points.back().step > kPoints * 9 / 10);
  const uint64_t distance = points[1].step - points[0].step;
  for (size_t i = 1; i < points.size(); i++) CHECK(points[i].step - points[i - 1].step == distance);
}

TEST_CASE("a book has the newest value of each name, and at most 16 names per rank") {
  ReportBook book;
  book.add(Rank{2}, 5, std::vector<NamedValue>{{"loss", 2}, {"norm", 7}}, 100);
  book.add(Rank{2}, 9, std::vector<NamedValue>{{"loss", 1}}, 101);
  const ReportBook::Entry* const entry = book.find(Rank{2});
  REQUIRE(entry);
  CHECK(entry->step == 9);
  REQUIRE(entry->newest.size() == 2);
  CHECK(entry->newest[0].value == 1);
  CHECK(entry->newest[1].value == 7);
  CHECK(entry->series.at("loss").points().size() == 2);
  for (int i = 0; i < 40; i++) {
    book.add(Rank{2}, 10, std::vector<NamedValue>{{"x" + std::to_string(i), 1}}, 102);
  }
  CHECK(entry->newest.size() == 16);
  CHECK(book.find(Rank{3}) == nullptr);
}

TEST_CASE("a full book evicts the rank that was silent longest") {
  ReportBook book;
  const std::vector<NamedValue> values{{"loss", 1}};
  for (uint32_t rank = 0; rank < ReportBook::kRanksMax; rank++) book.add(Rank{rank}, 1, values, 1);
  book.add(Rank{0}, 2, values, 2);
  book.add(Rank{1000}, 1, values, 3);
  CHECK(book.ranks().size() == ReportBook::kRanksMax);
  CHECK(book.find(Rank{0}));
  CHECK_FALSE(book.find(Rank{1}));
  CHECK(book.find(Rank{1000}));
}

}  // namespace
}  // namespace psd::report_book_test

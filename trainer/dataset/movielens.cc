#include "trainer/dataset/movielens.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/number.h"
#include "common/text/text.h"
#include "common/types/split_mix.h"
#include "trainer/dataset/csv_lines.h"
#include "trainer/dataset/ratings.h"
#include "trainer/dataset/whole_file.h"

namespace psd {
namespace {

/// The required columns, in any order.
constexpr std::array<std::string_view, 3> kFields{"userId", "movieId", "rating"};
enum Field : size_t { kUser, kItem, kRating };
constexpr uint64_t kFileBytesMax = 16ull << 30;

/// Reads ratings.csv line by line. Owned by one thread.
class RatingsReader {
 public:
  RatingsReader(const std::string& path, std::string_view text) : lines_(path, text) {}

  /// Calls `take(number, rating)` for each rating; numbers start at 0.
  template <class Take>
  Status read(const Take& take) {
    PSD_RETURN_IF_ERROR(readHeader());
    for (uint64_t number = 0; lines_.nextLine(); ++number) {
      PSD_ASSIGN_OR_RETURN(const Rating rating, readRating());
      take(number, rating);
    }
    return {};
  }

 private:
  Status readHeader() {
    lines_.nextLine();
    for (size_t column = 0;; ++column) {
      PSD_ASSIGN_OR_RETURN(const bool more, lines_.nextField());
      if (!more) break;
      const auto name = std::ranges::find(kFields, lines_.field());
      fields_.push_back(static_cast<size_t>(name - kFields.begin()));
      if (name == kFields.end() || std::ranges::count(fields_, fields_.back()) == 1) continue;
      return lines_.errorHere(fmt::format("'{}' is the name of two columns", *name));
    }
    for (size_t i = 0; i < kFields.size(); ++i) {
      if (std::ranges::count(fields_, i) == 0) {
        return lines_.errorHere(
            fmt::format("no column '{}'; expected a line with {} first", kFields[i], joined(kFields, ",")));
      }
    }
    return {};
  }

  Result<Rating> readRating() {
    Rating rating;
    size_t column = 0;
    for (;; ++column) {
      PSD_ASSIGN_OR_RETURN(const bool more, lines_.nextField());
      if (!more) break;
      if (column == fields_.size()) return lines_.errorHere(wrongFieldCount("more than"));
      switch (fields_[column]) {
        case kUser: PSD_RETURN_IF_ERROR(readWhole(rating.user)); break;
        case kItem: PSD_RETURN_IF_ERROR(readWhole(rating.item)); break;
        case kRating: PSD_RETURN_IF_ERROR(readValue(rating.value)); break;
        default: break;  // a column that is not required
      }
    }
    if (column < fields_.size()) return lines_.errorHere(wrongFieldCount("fewer than"));
    return rating;
  }

  std::string wrongFieldCount(std::string_view than) const {
    return fmt::format("{} {} fields, the number of names", than, fields_.size());
  }

  Status readWhole(uint64_t& value) const {
    const auto number = toNumber<int64_t>(lines_.field());
    if (!number || *number < 0) {
      return lines_.errorHere(fmt::format("'{}' is not a whole number from 0 to {}",
                                          printable(lines_.field(), 40),
                                          std::numeric_limits<int64_t>::max()));
    }
    value = static_cast<uint64_t>(*number);
    return {};
  }

  Status readValue(float& value) const {
    const auto number = toNumber<float>(lines_.field());
    if (!number) {
      return lines_.errorHere(
          fmt::format("'{}' is not a rating; expected a number", printable(lines_.field(), 40)));
    }
    value = *number;
    return {};
  }

  CsvLines lines_;
  std::vector<size_t> fields_;  // per column: its index in kFields, or kFields.size()
};

}  // namespace

Result<std::unique_ptr<Dataset>> openMovielens(const std::string& folder, Split split) {
  const std::string path = (std::filesystem::path(folder) / "ratings.csv").string();
  PSD_ASSIGN_OR_RETURN(const std::string text, readWholeFile(path, kFileBytesMax));
  std::vector<Rating> ratings;
  PSD_RETURN_IF_ERROR(RatingsReader(path, text).read([&](uint64_t number, const Rating& rating) {
    const bool isTest = splitMix(number) % 10 == 0;
    if (isTest == (split == Split::test)) ratings.push_back(rating);
  }));
  if (ratings.empty() || ratings.size() > std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorCode::io, fmt::format("{}: {} ratings to {}; expected 1 to {}", path, ratings.size(),
                                            split == Split::train ? "train on" : "test",
                                            std::numeric_limits<uint32_t>::max())};
  }
  std::string description = fmt::format("{} ratings from {}", ratings.size(), folder);
  return std::unique_ptr<Dataset>(std::make_unique<Ratings>(std::move(ratings), std::move(description)));
}

}  // namespace psd

#include "trainer/dataset/movielens.h"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/text.h"
#include "common/types/split_mix.h"
#include "trainer/dataset/ratings.h"
#include "trainer/dataset/whole_file.h"

namespace psd {
namespace {

constexpr std::string_view kHeader = "userId,movieId,rating,timestamp";
constexpr size_t kFields = 4;
constexpr uint64_t kFileBytesMax = 16ull << 30;
constexpr uint64_t kWholeMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

/// Reads a file of ratings line by line. Owned by one thread.
class RatingsReader {
 public:
  RatingsReader(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {}

  /// Calls `take(number, rating)` for each, from 0.
  template <class Take>
  Status read(const Take& take) {
    if (nextLine() != kHeader) return wrong(0, fmt::format("not '{}', with which ratings begin", kHeader));
    for (uint64_t number = 0; !text_.empty(); ++number) {
      PSD_ASSIGN_OR_RETURN(const Rating rating, readRating(nextLine()));
      take(number, rating);
    }
    return {};
  }

 private:
  std::string_view nextLine() {
    ++line_;
    std::string_view line = text_.substr(0, text_.find('\n'));
    text_.remove_prefix(std::min(text_.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  Result<Rating> readRating(std::string_view line) const {
    std::array<std::string_view, kFields> fields;
    std::array<size_t, kFields> begins{};
    size_t begin = 0;
    for (size_t i = 0; i < kFields; ++i) {
      begins[i] = begin;
      const size_t comma = line.find(',', begin);
      if ((comma == std::string_view::npos) != (i + 1 == kFields)) {
        return wrong(i + 1 == kFields ? comma : line.size(),
                     fmt::format("not {} fields, {}", kFields, kHeader));
      }
      fields[i] = line.substr(begin, comma - begin);
      begin = comma + 1;
    }
    Rating rating;
    uint64_t timestamp = 0;
    const auto whole = [&](size_t i, uint64_t& value) -> Status {
      if (parse(fields[i], value) && value <= kWholeMax) return {};
      return wrong(begins[i],
                   fmt::format("'{}' is no whole number from 0 to {}", printable(fields[i], 40), kWholeMax));
    };
    PSD_RETURN_IF_ERROR(whole(0, rating.user));
    PSD_RETURN_IF_ERROR(whole(1, rating.item));
    if (!parse(fields[2], rating.value) || !std::isfinite(rating.value)) {
      return wrong(begins[2], fmt::format("'{}' is no rating; expected a number", printable(fields[2], 40)));
    }
    PSD_RETURN_IF_ERROR(whole(3, timestamp));
    return rating;
  }

  template <class Number>
  static bool parse(std::string_view text, Number& value) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && stop == text.data() + text.size();
  }

  /// `at`: bytes from the line's begin.
  Error wrong(size_t at, const std::string& what) const {
    return {ErrorCode::io, fmt::format("{}:{}:{}: {}", path_, line_, at + 1, what)};
  }

  const std::string path_;
  std::string_view text_;  // that is left
  uint64_t line_ = 0;      // from 1, of the newest
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

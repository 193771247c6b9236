#include "trainer/dataset/file_samples.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/split.h"
#include "common/types/split_mix.h"
#include "trainer/dataset/stored_columns.h"

namespace psd {
namespace {

constexpr std::string_view kTestOption = ":test=";
constexpr uint64_t kTestEvery = 10;
constexpr const char *kTrainPurpose = "to train on", *kTestPurpose = "to test";

/// Immutable, so thread-safe.
class FileSamples : public Dataset {
 public:
  /// `rows`: the rows that are samples of this split, in order.
  FileSamples(StoredColumns stored, std::vector<ColumnSpec> columns, std::vector<uint32_t> rows,
              std::string description)
      : stored_(std::move(stored)),
        columns_(std::move(columns)),
        rows_(std::move(rows)),
        description_(std::move(description)) {}

  size_t sampleCount() const override { return rows_.size(); }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string skipReason(const std::string& column) const override {
    const auto found = stored_.skipped.find(column);
    return found == stored_.skipped.end() ? std::string() : found->second;
  }
  std::string describe() const override { return description_; }

  Status fill(std::span<const uint32_t> indices, Batch& batch) const override {
    batch.reshape(columns_, indices.size());
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::span<const std::byte> from = stored_.columns[i].bytes;
      const size_t rowBytes = from.size() / stored_.rows;
      std::byte* to = batch.bytesOf(i).data();
      for (const uint32_t index : indices) {
        std::memcpy(to, from.data() + rows_[index] * rowBytes, rowBytes);
        to += rowBytes;
      }
    }
    return {};
  }

 private:
  const StoredColumns stored_;
  const std::vector<ColumnSpec> columns_;  ///< the columns of stored_, with bounds
  const std::vector<uint32_t> rows_;
  const std::string description_;
};

template <class Number>
uint64_t boundOf(std::span<const std::byte> bytes) {
  Number least = std::numeric_limits<Number>::max(), most = std::numeric_limits<Number>::min();
  for (size_t at = 0; at < bytes.size(); at += sizeof(Number)) {
    Number value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    least = std::min(least, value);
    most = std::max(most, value);
  }
  return least < 0 ? 0 : static_cast<uint64_t>(most) + 1;
}

/// The exclusive upper bound of a column of non-negative whole numbers; 0 for any other column.
uint64_t boundOf(const StoredColumn& column) {
  switch (column.column.type) {
    case ElementType::i32: return boundOf<int32_t>(column.bytes);
    case ElementType::i64: return boundOf<int64_t>(column.bytes);
    case ElementType::u8: return boundOf<uint8_t>(column.bytes);
    default: return 0;
  }
}

Result<StoredColumns> readFiles(const std::string& text) {
  if (text.ends_with(".safetensors")) return readSafetensorsColumns(text);
  if (text.ends_with(".csv")) return readCsvColumns(text);
  const std::vector<std::string> paths = splitAtCommas(text);
  for (const std::string& path : paths) {
    if (path.ends_with(".npy")) continue;
    return Error{
        ErrorCode::invalidArgument,
        fmt::format("'{}' is not a file of samples; expected FILE.safetensors, FILE.csv or A.npy,B.npy,…",
                    path)};
  }
  return readNpyColumns(paths);
}

/// Keeps the columns that `other` has with the same type and shape. `is`: the purpose of `columns` and of
/// `other`, as "to train on".
void keepCommon(StoredColumns& columns, const StoredColumns& other, std::pair<const char*, const char*> is) {
  std::erase_if(columns.columns, [&](const StoredColumn& each) {
    const auto same = std::ranges::find(other.columns, each.column.name,
                                        [](const StoredColumn& one) { return one.column.name; });
    std::string& why = columns.skipped[each.column.name];
    if (same == other.columns.end()) {
      const auto skipped = other.skipped.find(each.column.name);
      why = skipped != other.skipped.end() ? skipped->second : fmt::format("there is none {}", is.second);
      return true;
    }
    if (same->column.toString() != each.column.toString()) {
      why = fmt::format("it is {} {}, but {} {}", each.column.typeText(), is.first, same->column.typeText(),
                        is.second);
      return true;
    }
    columns.skipped.erase(each.column.name);
    return false;
  });
}

/// The columns, identical in both splits, with the larger bound of the two.
std::vector<ColumnSpec> boundedColumns(const StoredColumns& train, const StoredColumns& test) {
  std::vector<ColumnSpec> columns;
  for (size_t i = 0; i < train.columns.size(); ++i) {
    const uint64_t trainBound = boundOf(train.columns[i]), testBound = boundOf(test.columns[i]);
    columns.push_back(train.columns[i].column);
    if (trainBound != 0 && testBound != 0) columns.back().bound = std::max(trainBound, testBound);
  }
  return columns;
}

std::vector<uint32_t> rowsOf(uint64_t count, bool splitByHash, Split split) {
  std::vector<uint32_t> rows;
  for (uint64_t row = 0; row < count; ++row) {
    const bool isTest = splitMix(row) % kTestEvery == 0;
    if (!splitByHash || isTest == (split == Split::test)) rows.push_back(static_cast<uint32_t>(row));
  }
  return rows;
}

/// Safetensors files have no visible order of tensors, so columns are sorted by name.
void sortByName(StoredColumns& stored) {
  std::ranges::sort(stored.columns, {}, [](const StoredColumn& each) { return each.column.name; });
}

}  // namespace

bool hasFileSuffix(std::string_view data) {
  return data.ends_with(".safetensors") || data.ends_with(".csv") || data.ends_with(".npy");
}

Result<std::unique_ptr<Dataset>> openFiles(const std::string& argument, Split split) {
  const size_t option = argument.rfind(kTestOption);
  const bool splitByHash = option == std::string::npos;
  const std::string trainFiles = argument.substr(0, option);
  const std::string testFiles = splitByHash ? trainFiles : argument.substr(option + kTestOption.size());
  PSD_ASSIGN_OR_RETURN(StoredColumns train, readFiles(trainFiles));
  sortByName(train);
  StoredColumns test = train;
  if (!splitByHash) {
    PSD_ASSIGN_OR_RETURN(test, readFiles(testFiles));
    sortByName(test);
    const StoredColumns allToTrain = train;
    keepCommon(train, test, {kTrainPurpose, kTestPurpose});
    keepCommon(test, allToTrain, {kTestPurpose, kTrainPurpose});
    if (train.columns.empty()) {
      return Error{ErrorCode::io, fmt::format("{} and {} have no column in common: '{}': {}", trainFiles,
                                              testFiles, allToTrain.columns.front().column.name,
                                              train.skipped.at(allToTrain.columns.front().column.name))};
    }
  }
  std::vector<ColumnSpec> columns = boundedColumns(train, test);
  StoredColumns& chosen = split == Split::train ? train : test;
  std::vector<uint32_t> rows = rowsOf(chosen.rows, splitByHash, split);
  if (rows.empty()) {
    return Error{ErrorCode::io,
                 fmt::format("{}: none of its {} rows is {}; expected more rows, or FILE:test=FILE",
                             trainFiles, chosen.rows, split == Split::train ? kTrainPurpose : kTestPurpose)};
  }
  std::string description =
      fmt::format("{} rows from {}", rows.size(), split == Split::train ? trainFiles : testFiles);
  return std::unique_ptr<Dataset>(std::make_unique<FileSamples>(std::move(chosen), std::move(columns),
                                                                std::move(rows), std::move(description)));
}

}  // namespace psd

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/task/batch.h"
#include "trainer/task/sparse_columns.h"

namespace psd {

/// The fewest and the most features of a line. A value type.
struct FeatureCounts {
  static constexpr uint64_t kBatchMax = uint64_t{1} << 27;  ///< bounds the memory of a batch

  uint32_t least = std::numeric_limits<uint32_t>::max(), most = 0;

  void add(uint32_t features) {
    least = std::min(least, features);
    most = std::max(most, features);
  }
  /// The most lines in a batch.
  uint64_t batchSizeMax() const { return kBatchMax / std::max(most, 1u); }
};

/// A format of text files with an example per line. kLinePadding bytes behind every line can be read.
/// Immutable, so thread-safe.
class LineFormat {
 public:
  virtual ~LineFormat() = default;

  /// Whether the line, without its end, is an example; adds the number of its features. If not, `why`
  /// becomes the reason, with the number of the character.
  virtual bool check(std::string_view line, FeatureCounts& features, std::string& why) const = 0;
  /// The columns of examples with these numbers of features.
  virtual std::vector<ColumnSpec> columns(const FeatureCounts& features) const = 0;
  /// Replaces the batch by these lines, of which each has a number of features as in `features`. Returns the
  /// number of the first line that is no example, in which case the batch is unspecified, or lines.size().
  virtual size_t fill(std::span<const std::string_view> lines, const FeatureCounts& features,
                      Batch& batch) const = 0;
};

/// How many lines ahead a line is fetched into the cache: in random order each is a miss.
inline constexpr size_t kPrefetchLines = 8;
inline void prefetchLine(std::span<const std::string_view> lines, size_t index) {
  constexpr size_t kCacheLine = 64, kMost = 512;
  if (index >= lines.size()) return;
  const std::string_view line = lines[index];
  for (size_t at = 0; at < std::min(line.size(), kMost); at += kCacheLine)
    __builtin_prefetch(line.data() + at);
}

/// Lines of libsvm: a label (1, +1, 0 or −1), then features as id:value. Columns: kSparseIds i64[features],
/// kSparseValues f32[features], kSparseLabel i64. If the numbers of features differ, a batch is as wide as
/// its longest line.
std::unique_ptr<LineFormat> makeLibsvmFormat();

/// Lines of Criteo's click logs: a label (0 or 1), 13 whole numbers and 26 categories, separated by tabs.
/// Columns: kSparseIds i64[39] and kSparseValues f32[39], kSparseLabel i64, and the same features as
/// "numbers" f32[13] and "categories" i64[26]. The value of a number n is ln(1 + max(n, 0)), of a missing one
/// 0, of a category 1; ids are those of categoryId(), where the fields are numbered from 0 and the id of a
/// number is that of the empty text.
std::unique_ptr<LineFormat> makeCriteoFormat();

}  // namespace psd

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"
#include "trainer/dataset/line_format.h"
#include "trainer/dataset/text_file.h"

namespace psd {

/// Successive lines of a file, from one offset on, about TextFile::kCutBytes of them; the unit of reading and
/// of shuffling. A value type.
struct LineBlock {
  uint32_t file = 0;
  uint32_t bytes = 0;
  uint64_t offset = 0;        ///< of the file's text
  uint64_t firstLine = 0;     ///< its number in the file, from 1
  uint64_t firstExample = 0;  ///< its number in all files, from 0
  uint32_t examples = 0;      ///< lines that are examples
  uint32_t badCount = 0;      ///< lines that are not
  uint64_t badBegin = 0;      ///< the first of these in the list of all of them
};

/// The lines of text files in one format. Every line is checked once, when the files are opened; later only
/// blocks of them are in memory. Immutable once opened, so thread-safe.
class LineFiles {
 public:
  /// A longer line is no example.
  static constexpr size_t kLineBytesMax = 1u << 20;

  /// Checks every line of the files, in this order. The error names a file that cannot be read, is empty or
  /// has no example, or the first line after the `options.badLines` that are skipped.
  static Result<std::shared_ptr<const LineFiles>> open(const std::vector<std::string>& paths,
                                                       std::unique_ptr<LineFormat> format,
                                                       const DatasetOptions& options);

  const LineFormat& format() const { return *format_; }
  std::span<const LineBlock> blocks() const { return blocks_; }
  uint64_t exampleCount() const { return examples_; }
  /// Lines that are skipped.
  uint64_t badLineCount() const { return badLineCount_; }
  const FeatureCounts& features() const { return features_; }
  const std::string& pathOf(const LineBlock& block) const { return files_[block.file]->path(); }

  /// Reads a block's text, and finds its examples: all lines but the bad ones, without their ends.
  Status read(const LineBlock& block, std::string& text, std::vector<std::string_view>& examples) const;

 private:
  friend class LineFilesReader;
  LineFiles() = default;

  std::unique_ptr<LineFormat> format_;
  std::vector<std::unique_ptr<TextFile>> files_;
  std::vector<LineBlock> blocks_;
  std::vector<uint32_t> badLines_;  ///< of all blocks: numbers in their block, from 0
  uint64_t badLineCount_ = 0, examples_ = 0;
  FeatureCounts features_;
};

}  // namespace psd

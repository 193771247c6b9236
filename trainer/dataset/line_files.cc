#include "trainer/dataset/line_files.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/types/stopwatch.h"
#include "trainer/dataset/line_numbers.h"

namespace psd {
namespace {

constexpr size_t kReadBytes = 256u << 10;
constexpr double kProgressSeconds = 2;
constexpr uint64_t kExamplesMax = std::numeric_limits<uint32_t>::max();

/// A line without its end: LF, or CR LF.
std::string_view withoutReturn(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

/// Checks all lines of the files and finds the blocks. Owned by one thread.
class LineFilesReader {
 public:
  LineFilesReader(LineFiles& lines, const DatasetOptions& options)
      : lines_(lines), options_(options), buffer_(LineFiles::kLineBytesMax + kReadBytes + kLinePadding) {}

  Status readAll(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) {
      PSD_ASSIGN_OR_RETURN(auto file, TextFile::open(path));
      progress_.totalBytes += file->storedBytes();
      lines_.files_.push_back(std::move(file));
    }
    for (; file_ < lines_.files_.size(); ++file_) {
      PSD_RETURN_IF_ERROR(readFile(*lines_.files_[file_]));
      earlierBytes_ += lines_.files_[file_]->storedBytes();
    }
    lines_.examples_ = examples_;
    lines_.badLineCount_ = progress_.badLines;
    if (examples_ == 0) return {ErrorCode::io, paths.front() + ": no line is an example"};
    report(/*done=*/true);
    return {};
  }

 private:
  /// Reads a file piece by piece; the start of a line whose end has not been read stays in the buffer.
  Status readFile(TextFile& file) {
    line_ = 1;
    offset_ = 0;
    inLongLine_ = false;
    beginBlock();
    for (size_t kept = 0;;) {
      PSD_ASSIGN_OR_RETURN(const size_t got, file.read(std::span(buffer_).subspan(kept, kReadBytes)));
      std::string_view text(buffer_.data(), kept + got);
      cut_ = file.cutAfter(block_.offset);
      PSD_RETURN_IF_ERROR(takeLines(file, text));
      if (got == 0) {
        if (!text.empty() || inLongLine_) PSD_RETURN_IF_ERROR(take(file, text, text.size()));
        break;
      }
      if (text.size() > LineFiles::kLineBytesMax) {
        PSD_RETURN_IF_ERROR(skipLong(file, text.size()));
        text.remove_prefix(text.size());
      }
      kept = text.size();
      std::memmove(buffer_.data(), text.data(), kept);
      reportFrom(file);
    }
    endBlock();
    if (line_ == 1) return {ErrorCode::io, file.path() + ": the file is empty; expected an example per line"};
    return {};
  }

  /// Takes the complete lines from the start of `text`.
  Status takeLines(const TextFile& file, std::string_view& text) {
    for (;;) {
      const void* const found = std::memchr(text.data(), '\n', text.size());
      if (found == nullptr) return {};
      const auto end = static_cast<size_t>(static_cast<const char*>(found) - text.data());
      PSD_RETURN_IF_ERROR(take(file, text.substr(0, end), end + 1));
      text.remove_prefix(end + 1);
    }
  }

  /// Takes a line, of `bytes` bytes with its end, or the rest of one that is skipped.
  Status take(const TextFile& file, std::string_view line, size_t bytes) {
    if (inLongLine_ || line.size() > LineFiles::kLineBytesMax) {
      PSD_RETURN_IF_ERROR(skipLong(file, bytes));
      inLongLine_ = false;
      ++line_;
      beginBlock();
      return {};
    }
    if (offset_ >= cut_) {
      beginBlock();
      cut_ = file.cutAfter(offset_);
    }
    std::string why;
    if (lines_.format_->check(withoutReturn(line), lines_.features_, why)) {
      if (++examples_ > kExamplesMax) {
        return {ErrorCode::io,
                fmt::format("{}:{}: the files have more than {} examples", file.path(), line_, kExamplesMax)};
      }
      ++block_.examples;
    } else {
      lines_.badLines_.push_back(static_cast<uint32_t>(line_ - block_.firstLine));
      ++block_.badCount;
      PSD_RETURN_IF_ERROR(addBad(file, why));
    }
    ++line_;
    offset_ += bytes;
    block_.bytes += static_cast<uint32_t>(bytes);
    return {};
  }

  /// Skips bytes of a line that is too long. It belongs to no block.
  Status skipLong(const TextFile& file, size_t bytes) {
    endBlock();
    offset_ += bytes;
    if (std::exchange(inLongLine_, true)) return {};
    return addBad(file, fmt::format("longer than {} bytes", LineFiles::kLineBytesMax));
  }

  Status addBad(const TextFile& file, const std::string& why) {
    std::string text = fmt::format("{}:{}: {}", file.path(), line_, why);
    if (progress_.badLines++ == 0) progress_.firstBadLine = text;
    if (progress_.badLines <= options_.badLines) return {};
    text += options_.badLines == 0
                ? "; --bad-lines N skips up to N such lines"
                : fmt::format("; it is the first after the {} that --bad-lines skips", options_.badLines);
    return {ErrorCode::io, std::move(text)};
  }

  void endBlock() {
    if (block_.bytes != 0) lines_.blocks_.push_back(block_);
    block_ = {};
  }
  void beginBlock() {
    endBlock();
    block_.file = static_cast<uint32_t>(file_);
    block_.offset = offset_;
    block_.firstLine = line_;
    block_.firstExample = examples_;
    block_.badBegin = lines_.badLines_.size();
  }

  void reportFrom(const TextFile& file) {
    if (stopwatch_.seconds() - reportedAt_ < kProgressSeconds) return;
    progress_.bytes = earlierBytes_ + file.storedBytesRead();
    report(/*done=*/false);
  }
  void report(bool done) {
    reportedAt_ = stopwatch_.seconds();
    progress_.seconds = reportedAt_;
    progress_.done = done;
    if (done) progress_.bytes = progress_.totalBytes;
    if (options_.onProgress) options_.onProgress(progress_);
  }

  LineFiles& lines_;
  const DatasetOptions& options_;
  std::vector<char> buffer_;
  size_t file_ = 0;  ///< of lines_.files_
  LineBlock block_;
  uint64_t examples_ = 0;
  uint64_t line_ = 1, offset_ = 0;  ///< of the next line
  bool inLongLine_ = false;         ///< it is too long, and its start has been skipped
  uint64_t cut_ = 0;                ///< a block ends before the first line from here on
  ReadProgress progress_;
  const Stopwatch stopwatch_;
  double reportedAt_ = 0;
  uint64_t earlierBytes_ = 0;  ///< of the files before this one
};

Result<std::shared_ptr<const LineFiles>> LineFiles::open(const std::vector<std::string>& paths,
                                                         std::unique_ptr<LineFormat> format,
                                                         const DatasetOptions& options) {
  std::shared_ptr<LineFiles> lines(new LineFiles());
  lines->format_ = std::move(format);
  PSD_RETURN_IF_ERROR(LineFilesReader(*lines, options).readAll(paths));
  return std::shared_ptr<const LineFiles>(std::move(lines));
}

Status LineFiles::read(const LineBlock& block, std::string& text,
                       std::vector<std::string_view>& examples) const {
  text.resize(block.bytes + kLinePadding);
  PSD_RETURN_IF_ERROR(files_[block.file]->readAt(block.offset, std::span(text).first(block.bytes)));
  examples.clear();
  examples.reserve(block.examples);
  auto bad = std::span(badLines_).subspan(block.badBegin, block.badCount);
  std::string_view left(text.data(), block.bytes);
  for (uint32_t line = 0; !left.empty(); ++line) {
    const size_t end = std::min(left.find('\n'), left.size());
    if (!bad.empty() && bad.front() == line) {
      bad = bad.subspan(1);
    } else {
      examples.push_back(withoutReturn(left.substr(0, end)));
    }
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  if (examples.size() == block.examples) return {};
  return {ErrorCode::io, pathOf(block) + ": has changed since it was opened"};
}

}  // namespace psd

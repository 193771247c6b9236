#include "trainer/dataset/sparse_files.h"

#include <algorithm>
#include <filesystem>
#include <list>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <glob.h>

#include "common/text/split.h"
#include "common/types/split_mix.h"
#include "trainer/dataset/block_order.h"
#include "trainer/dataset/line_files.h"
#include "trainer/dataset/line_numbers.h"

namespace psd {
namespace {

constexpr std::string_view kTestFilesOption = ":test=";
constexpr uint64_t kHeldOutEvery = 10;

/// Which examples of the files are samples.
enum class Part { all, train, test };

/// Whether the example of this number is chosen.
bool isChosen(Part part, uint64_t example) {
  return part == Part::all || (splitMix(example) % kHeldOutEvery == 0) == (part == Part::test);
}

/// Examples of files, of which few blocks are in memory. Thread-safe; one thread at a time reads.
class SparseFiles : public Dataset {
 public:
  /// `files`: the text that names them.
  SparseFiles(std::shared_ptr<const LineFiles> lines, Part part, const std::string& files)
      : lines_(std::move(lines)), part_(part), columns_(lines_->format().columns(lines_->features())) {
    for (const LineBlock& block : lines_->blocks()) {
      uint32_t chosen = 0;
      for (uint32_t i = 0; i < block.examples; ++i) chosen += isChosen(part_, block.firstExample + i);
      if (chosen == 0) continue;
      blocks_.push_back(&block);
      begins_.push_back(static_cast<uint32_t>(samples_));
      samples_ += chosen;
      blockBytesMax_ = std::max(blockBytesMax_, block.bytes);
      blockExamplesMax_ = std::max(blockExamplesMax_, block.examples);
    }
    inMemory_.resize(blocks_.size());
    description_ = fmt::format("{} examples from {}", samples_, files);
    if (const uint64_t bad = lines_->badLineCount(); bad != 0) {
      description_ += fmt::format(" ({} malformed line(s) skipped)", bad);
    }
  }

  size_t sampleCount() const override { return samples_; }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return description_; }
  std::span<const uint32_t> blocks() const override { return begins_; }

  uint64_t batchSizeMax() const override { return lines_->features().batchSizeMax(); }

  Status fill(std::span<const uint32_t> indices, Batch& batch) const override {
    const std::scoped_lock lock(mutex_);
    std::vector<std::string_view> lines(indices.size());
    uint64_t bytes = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      const size_t block = blockOf(indices[i]);
      PSD_ASSIGN_OR_RETURN(const Loaded* const loaded, load(block));
      lines[i] = loaded->samples[indices[i] - begins_[block]];
      bytes += lines[i].size() + 1;
    }
    const size_t wrong = lines_->format().fill(lines, lines_->features(), batch);
    dropOldest();
    batch.setSourceBytes(bytes);
    if (wrong == lines.size()) return {};
    const std::string& path = lines_->pathOf(*blocks_[blockOf(indices[wrong])]);
    return {ErrorCode::io, path + ": has changed since it was opened"};
  }

 private:
  /// Blocks that stay in memory between two batches: those of a group of an order by blocks, and those of the
  /// next one when it begins.
  static constexpr size_t kLoadedMax = BlockOrder::kGroupBlocks + 2;
  /// A block in memory. A value type.
  struct Loaded {
    size_t block = 0;
    uint64_t usedAt = 0;  ///< the newest batch that it is in
    std::string text;
    std::vector<std::string_view> samples;  ///< in text
  };

  size_t blockOf(uint32_t sample) const {
    return static_cast<size_t>(std::ranges::upper_bound(begins_, sample) - begins_.begin()) - 1;
  }

  /// The block, which is valid until the end of the call of fill().
  Result<const Loaded*> load(size_t block) const {
    if (Loaded* const found = inMemory_[block]) {
      found->usedAt = now_;
      return found;
    }
    if (spare_.empty()) {  // with memory for any block, since memory that grows would leave holes in the heap
      spare_.emplace_back();
      spare_.front().text.reserve(blockBytesMax_ + kLinePadding);
      spare_.front().samples.reserve(blockExamplesMax_);
    }
    Loaded& loaded = spare_.front();
    const LineBlock& from = *blocks_[block];
    PSD_RETURN_IF_ERROR(lines_->read(from, loaded.text, loaded.samples));
    uint64_t example = from.firstExample;
    std::erase_if(loaded.samples, [&](std::string_view) { return !isChosen(part_, example++); });
    loaded.block = block;
    loaded.usedAt = now_;
    loaded_.splice(loaded_.end(), spare_, spare_.begin());
    return inMemory_[block] = &loaded;
  }

  /// Keeps the memory of some dropped blocks for others. A batch may have examples of many more.
  void dropOldest() const {
    while (loaded_.size() > kLoadedMax) {
      // Of blocks that this batch has used, those loaded last are of the group that begins.
      const auto oldest = std::ranges::min_element(loaded_, {}, &Loaded::usedAt);
      inMemory_[oldest->block] = nullptr;
      spare_.splice(spare_.end(), loaded_, oldest);
    }
    while (spare_.size() > BlockOrder::kGroupBlocks) spare_.pop_front();
    ++now_;
  }

  const std::shared_ptr<const LineFiles> lines_;
  const Part part_;
  const std::vector<ColumnSpec> columns_;
  std::string description_;
  std::vector<const LineBlock*> blocks_;  ///< of lines_, those with samples
  std::vector<uint32_t> begins_;          ///< the first sample of each
  uint64_t samples_ = 0;
  uint32_t blockBytesMax_ = 0, blockExamplesMax_ = 0;
  mutable std::mutex mutex_;
  mutable std::list<Loaded> loaded_;       ///< in the order of loading
  mutable std::list<Loaded> spare_;        ///< whose memory is used again
  mutable std::vector<Loaded*> inMemory_;  ///< by block; null: not in memory
  mutable uint64_t now_ = 0;               ///< number of the batch
};

bool isVisible(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  return !name.starts_with('.') && !name.starts_with('_');
}

/// Appends the files of a folder, by name.
Status addFolder(const std::string& folder, std::vector<std::string>& paths) {
  std::error_code error;
  std::vector<std::string> found;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (isVisible(at->path()) && at->is_regular_file(ignored)) found.push_back(at->path().string());
  }
  if (error) return {ErrorCode::io, folder + ": " + error.message()};
  if (found.empty()) return {ErrorCode::io, folder + ": a folder without files; expected files of examples"};
  std::ranges::sort(found);
  paths.insert(paths.end(), found.begin(), found.end());
  return {};
}

/// Appends the files that match a pattern, by name.
Status addMatches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t matches{};
  const int code = glob(pattern.c_str(), 0, nullptr, &matches);
  if (code == 0) paths.insert(paths.end(), matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (code == 0) return {};
  return {ErrorCode::io, pattern + ": no file matches"};
}

/// The files that the text names, in an order that is the same for every trainer.
Result<std::vector<std::string>> filesOf(const std::string& text) {
  std::vector<std::string> paths;
  for (const std::string& each : splitAtCommas(text)) {
    if (each.empty()) return Error{ErrorCode::io, text + ": a file's name is missing beside a comma"};
    std::error_code ignored;
    if (std::filesystem::is_directory(each, ignored)) {
      PSD_RETURN_IF_ERROR(addFolder(each, paths));
    } else if (each.find_first_of("*?[") != std::string::npos && !std::filesystem::exists(each, ignored)) {
      PSD_RETURN_IF_ERROR(addMatches(each, paths));
    } else {
      paths.push_back(each);
    }
  }
  return paths;
}

using MakeFormat = std::unique_ptr<LineFormat> (*)();

/// The lines of these files. The training and the test samples of a process share them.
Result<std::shared_ptr<const LineFiles>> linesOf(const std::string& text, MakeFormat makeFormat,
                                                 const DatasetOptions& options) {
  static std::mutex mutex;
  static std::weak_ptr<const LineFiles> newest;
  static std::string newestText;
  const std::string asked =
      fmt::format("{} {} {}", reinterpret_cast<uintptr_t>(makeFormat), options.badLines, text);
  const std::scoped_lock lock(mutex);
  if (auto lines = newest.lock(); lines && newestText == asked) return lines;
  PSD_ASSIGN_OR_RETURN(const std::vector<std::string> paths, filesOf(text));
  PSD_ASSIGN_OR_RETURN(auto lines, LineFiles::open(paths, makeFormat(), options));
  newest = lines;
  newestText = asked;
  return lines;
}

Result<std::unique_ptr<Dataset>> openSparse(const std::string& name, MakeFormat makeFormat,
                                            const std::string& argument, Split split,
                                            const DatasetOptions& options) {
  const size_t option = argument.rfind(kTestFilesOption);
  const bool splitByHash = option == std::string::npos;
  const std::string trainFiles = argument.substr(0, option);
  const std::string testFiles = splitByHash ? trainFiles : argument.substr(option + kTestFilesOption.size());
  if (trainFiles.empty() || testFiles.empty()) {
    return Error{ErrorCode::invalidArgument,
                 fmt::format("{0}: missing file; expected {0}:FILES or {0}:FILES:test=FILES", name)};
  }
  const std::string& files = split == Split::train ? trainFiles : testFiles;
  PSD_ASSIGN_OR_RETURN(const auto lines, linesOf(files, makeFormat, options));
  const Part part = !splitByHash ? Part::all : split == Split::train ? Part::train : Part::test;
  auto data = std::make_unique<SparseFiles>(lines, part, files);
  if (data->sampleCount() == 0) {
    return Error{
        ErrorCode::io,
        fmt::format("{}: none of its {} example(s) is one to {}; expected more examples, or "
                    "{}:FILES:test=FILES",
                    files, lines->exampleCount(), split == Split::train ? "train on" : "test", name)};
  }
  return std::unique_ptr<Dataset>(std::move(data));
}

}  // namespace

Result<std::unique_ptr<Dataset>> openLibsvm(const std::string& argument, Split split,
                                            const DatasetOptions& options) {
  return openSparse("libsvm", makeLibsvmFormat, argument, split, options);
}

Result<std::unique_ptr<Dataset>> openCriteo(const std::string& argument, Split split,
                                            const DatasetOptions& options) {
  return openSparse("criteo", makeCriteoFormat, argument, split, options);
}

}  // namespace psd

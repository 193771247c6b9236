#include "trainer/dataset/text.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/named_options.h"
#include "trainer/dataset/vocabulary.h"
#include "trainer/dataset/whole_file.h"

namespace psd {
namespace {

constexpr uint64_t kTextBytesMax = 4ull << 30;
constexpr uint64_t kVocabularyDefault = 10'000, kVocabularyMax = 100'000'000;
constexpr uint64_t kLengthDefault = 32, kLengthMax = 1 << 20;
constexpr uint64_t kTrainTenths = 9;

/// Successive token sequences of a text. Immutable, so thread-safe.
class TextSamples : public Dataset {
 public:
  TextSamples(std::vector<uint32_t> tokens, uint64_t length, uint32_t vocabulary, std::string description)
      : tokens_(std::move(tokens)),
        length_(length),
        columns_{{std::string(kTokens), ElementType::i64, {length + 1}, vocabulary}},
        description_(std::move(description)) {}

  size_t sampleCount() const override { return (tokens_.size() - 1) / length_; }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return description_; }

  Status fill(std::span<const uint32_t> indices, Batch& batch) const override {
    batch.reshape(columns_, indices.size());
    int64_t* out = batch.values<int64_t>(kTokens).data();
    for (const uint32_t index : indices) {
      const uint32_t* const first = tokens_.data() + index * length_;
      out = std::copy(first, first + length_ + 1, out);
    }
    return {};
  }

 private:
  std::vector<uint32_t> tokens_;  ///< of this split
  uint64_t length_;
  std::vector<ColumnSpec> columns_;
  std::string description_;
};

struct TextOptions {
  std::string path;
  TextLevel level = TextLevel::word;
  uint64_t vocabulary = kVocabularyDefault;
  uint64_t length = kLengthDefault;
};

/// Options follow the last colon if there is a "=" after it; a file name may contain colons.
Result<TextOptions> readOptions(const std::string& argument) {
  const size_t colon = argument.rfind(':');
  const bool given = colon != std::string::npos && argument.find('=', colon) != std::string::npos;
  TextOptions text;
  text.path = given ? argument.substr(0, colon) : argument;
  NamedOptions options("data set", "text", given ? std::string_view(argument).substr(colon + 1) : "");
  text.level = options.word("level", {"word", "char"}) == "char" ? TextLevel::character : TextLevel::word;
  text.vocabulary = options.count("vocabulary", kVocabularyDefault, 2, kVocabularyMax);
  text.length = options.count("length", kLengthDefault, 1, kLengthMax);
  PSD_RETURN_IF_ERROR(options.finish());
  if (!text.path.empty()) return text;
  return Error{ErrorCode::invalidArgument, "text: missing file; expected text:FILE"};
}

}  // namespace

Result<std::unique_ptr<Dataset>> openText(const std::string& argument, Split split) {
  PSD_ASSIGN_OR_RETURN(const TextOptions options, readOptions(argument));
  PSD_ASSIGN_OR_RETURN(std::string text, readWholeFile(options.path, kTextBytesMax));
  auto cut = cutText(text, options.level);
  if (!cut.ok()) return Error{cut.error().code, options.path + ": " + cut.message()};

  const std::vector<std::string_view> training(
      cut->begin(), cut->begin() + static_cast<std::ptrdiff_t>(cut->size() * kTrainTenths / 10));
  const Vocabulary vocabulary(training, static_cast<uint32_t>(options.vocabulary));
  std::vector<uint32_t> numbers;
  const size_t begin = split == Split::train ? 0 : training.size();
  const size_t end = split == Split::train ? training.size() : cut->size();
  for (size_t i = begin; i < end; ++i) numbers.push_back(vocabulary.numberOf((*cut)[i]));
  if (numbers.size() <= options.length) {
    return Error{
        ErrorCode::io,
        fmt::format("{}: its {} part has {} tokens; expected more than a sample's length, {}", options.path,
                    split == Split::train ? "training" : "test", numbers.size(), options.length)};
  }
  const size_t samples = (numbers.size() - 1) / options.length;
  if (samples > std::numeric_limits<uint32_t>::max()) {
    return Error{ErrorCode::io, options.path + ": too many samples; choose a larger length"};
  }
  std::string description =
      fmt::format("{} sequences of {} {} from {}", samples, options.length,
                  options.level == TextLevel::word ? "words" : "characters", options.path);
  return std::unique_ptr<Dataset>(std::make_unique<TextSamples>(std::move(numbers), options.length,
                                                                vocabulary.size(), std::move(description)));
}

uint64_t tokensPerSample(const Dataset& dataset) {
  for (const ColumnSpec& column : dataset.columns()) {
    if (column.name == kTokens && column.shape.size() == 1) return column.shape[0] - 1;
  }
  return 0;
}

}  // namespace psd

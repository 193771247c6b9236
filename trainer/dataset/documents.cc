#include "trainer/dataset/documents.h"

#include <cmath>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "common/text/named_options.h"
#include "common/types/row_initial.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/zipf.h"

namespace psd {
namespace {

struct DocumentOptions {
  uint64_t samples = 0;
  uint32_t words = 0;
  uint64_t length = 0;
  float noise = 0;
};

/// Samples are generated on demand. Immutable, so thread-safe.
class Documents : public Dataset {
 public:
  Documents(const DocumentOptions& options, Split split, uint64_t seed)
      : options_(options),
        seed_(seed),
        split_(split),
        columns_{{"words", ElementType::i64, {options.length}},
                 {"weights", ElementType::f32, {options.length}},
                 {"label", ElementType::i64, {}, 2}},
        zipf_(options.words),
        meanings_(options.words) {
    // The hidden weight of each word, which training is to recover.
    for (uint32_t word = 0; word < options.words; ++word)
      RowInitial{RowInitial::Kind::normal, 1, ~seed}.fill(word, {&meanings_[word], 1});
  }

  size_t sampleCount() const override { return options_.samples; }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return fmt::format("{} synthetic documents", options_.samples); }

  Status fill(std::span<const uint32_t> indices, Batch& batch) const override {
    batch.reshape(columns_, indices.size());
    const auto words = batch.values<int64_t>("words"), labels = batch.values<int64_t>("label");
    const auto weights = batch.values<float>("weights");
    for (size_t i = 0; i < indices.size(); ++i) {
      Random random(seed_, 2 * uint64_t{indices[i]} + static_cast<uint64_t>(split_));
      const auto sampleWords = words.subspan(i * options_.length, options_.length);
      const auto sampleWeights = weights.subspan(i * options_.length, options_.length);
      double squares = 0, margin = 0;
      for (size_t k = 0; k < options_.length; ++k) {
        const uint32_t word = zipf_.draw(random);
        const double weight = std::log(2.0 + word);
        sampleWords[k] = word;
        sampleWeights[k] = static_cast<float>(weight);
        squares += weight * weight;
        margin += weight * static_cast<double>(meanings_[word]);
      }
      const double scale = 1 / std::sqrt(squares);
      for (float& weight : sampleWeights) weight = static_cast<float>(weight * scale);
      float noise = 0;
      RowInitial{RowInitial::Kind::normal, options_.noise, seed_}.fill(random.next(), {&noise, 1});
      labels[i] = margin * scale + static_cast<double>(noise) > 0;
    }
    return {};
  }

 private:
  const DocumentOptions options_;
  const uint64_t seed_;
  const Split split_;
  const std::vector<ColumnSpec> columns_;
  const Zipf zipf_;
  std::vector<float> meanings_;  // by word
};

}  // namespace

Result<std::unique_ptr<Dataset>> openDocuments(const std::string& argument, Split split, uint64_t seed) {
  NamedOptions given("data set", "documents", argument);
  DocumentOptions options;
  options.samples = given.count("samples", 50'000, 5, 4'000'000'000);
  options.words = static_cast<uint32_t>(given.count("words", 47'236, 1, 100'000'000));
  options.length = given.count("length", 76, 1, 10'000);
  options.noise = static_cast<float>(given.number("noise", 0.3, 0, 100));
  PSD_RETURN_IF_ERROR(given.finish());
  if (split == Split::test) options.samples /= 5;
  return std::unique_ptr<Dataset>(std::make_unique<Documents>(options, split, seed));
}

}  // namespace psd

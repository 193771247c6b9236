#include "trainer/dataset/clicks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/text/named_options.h"
#include "common/types/row_initial.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/zipf.h"

namespace psd {
namespace {

/// Number of distinct values of each category in Criteo's seven-day log (Naumov et al. 2019).
constexpr std::array<uint32_t, 26> kCriteoIds = {
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};
constexpr size_t kCategories = kCriteoIds.size(), kNumbers = 13;

/// The model that generates the probabilities. Immutable.
class Teacher {
 public:
  explicit Teacher(uint64_t seed) : effects_{RowInitial::Kind::normal, 1, ~seed}, numbers_(kNumbers) {
    RowInitial{RowInitial::Kind::normal, kNumberEffect, ~seed + 1}.fill(0, numbers_);
  }

  float probability(std::span<const float> numbers, std::span<const int64_t> ids) const {
    float odds = kBase;
    for (size_t i = 0; i < kNumbers; ++i) odds += numbers_[i] * numbers[i];
    Row before{};
    for (size_t i = 0; i < ids.size(); ++i) {
      Row row;
      effects_.fill(static_cast<uint64_t>(ids[i]), row);
      odds += kIdEffect * row[0];
      for (size_t k = 1; k < row.size(); ++k) odds += kPairEffect * row[k] * before[k];
      before = row;
    }
    return 1 / (1 + std::exp(-odds));
  }

 private:
  using Row = std::array<float, 4>;  // an effect, then factors multiplied with the neighbour's
  static constexpr float kBase = -1.5f, kNumberEffect = 0.2f, kIdEffect = 0.25f, kPairEffect = 0.15f;

  const RowInitial effects_;
  std::vector<float> numbers_;
};

/// Samples are generated on demand. Immutable, so thread-safe.
class Clicks : public Dataset {
 public:
  Clicks(uint64_t samples, uint64_t scale, Split split, uint64_t seed)
      : samples_(samples), seed_(seed), split_(split), teacher_(seed) {
    for (const uint32_t ids : kCriteoIds) {
      zipf_.emplace_back(std::max(2u, static_cast<uint32_t>(ids / scale)));
    }
  }

  size_t sampleCount() const override { return samples_; }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return fmt::format("{} synthetic clicks", samples_); }

  Status fill(std::span<const uint32_t> indices, Batch& batch) const override {
    batch.reshape(columns_, indices.size());
    const auto numbers = batch.values<float>("numbers"), probabilities = batch.values<float>("probability");
    const auto ids = batch.values<int64_t>("categories"), labels = batch.values<int64_t>("label");
    for (size_t i = 0; i < indices.size(); ++i) {
      Random random(seed_, 2 * uint64_t{indices[i]} + static_cast<uint64_t>(split_));
      const auto sampleIds = ids.subspan(i * kCategories, kCategories);
      for (size_t k = 0; k < kCategories; ++k) sampleIds[k] = idOf(k, zipf_[k].draw(random));
      const auto sampleNumbers = numbers.subspan(i * kNumbers, kNumbers);
      RowInitial{RowInitial::Kind::normal, 1, seed_}.fill(random.next(), sampleNumbers);
      probabilities[i] = teacher_.probability(sampleNumbers, sampleIds);
      labels[i] = static_cast<float>(random.next() >> 40) * 0x1p-24f < probabilities[i];
    }
    return {};
  }

 private:
  int64_t idOf(size_t category, uint32_t number) const {
    return static_cast<int64_t>(splitMix(seed_ ^ (uint64_t{category} << 32 | number)));
  }

  const std::vector<ColumnSpec> columns_{{"numbers", ElementType::f32, {kNumbers}},
                                         {"categories", ElementType::i64, {kCategories}},
                                         {"label", ElementType::i64, {}, 2},
                                         {"probability", ElementType::f32, {}}};
  const uint64_t samples_, seed_;
  const Split split_;
  const Teacher teacher_;
  std::vector<Zipf> zipf_;  // by category
};

}  // namespace

Result<std::unique_ptr<Dataset>> openClicks(const std::string& argument, Split split, uint64_t seed) {
  constexpr uint64_t kSamplesMax = 4'000'000'000, kScaleMax = 10'000'000;
  NamedOptions options("data set", "clicks", argument);
  const uint64_t samples = options.count("samples", 200'000, 10, kSamplesMax);
  const uint64_t scale = options.count("scale", 100, 1, kScaleMax);
  PSD_RETURN_IF_ERROR(options.finish());
  return std::unique_ptr<Dataset>(
      std::make_unique<Clicks>(split == Split::train ? samples : samples / 10, scale, split, seed));
}

}  // namespace psd

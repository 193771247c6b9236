#include "trainer/dataset/ratings.h"

#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "common/text/named_options.h"
#include "common/types/row_initial.h"
#include "trainer/dataset/random.h"

namespace psd {
namespace {

constexpr size_t kFactors = 4;
constexpr float kMean = 3.5f;

/// The hidden model that generates the ratings. A value type.
class Taste {
 public:
  Taste(uint64_t seed, float noise) : seed_(seed), noise_{RowInitial::Kind::normal, noise, seed} {}

  enum class Entity : uint64_t { user, item };
  uint64_t idOf(Entity entity, uint32_t number) const {
    return splitMix(seed_ + kSplitMixStep * (2 * uint64_t{number} + static_cast<uint64_t>(entity))) >> 1;
  }
  float rate(uint64_t user, uint64_t item, uint64_t sample) const {
    const auto u = traits(Entity::user, user), i = traits(Entity::item, item);
    float noise = 0;
    noise_.fill(sample, {&noise, 1});
    float value = kMean + (u[kFactors] + i[kFactors]) / 2 + noise;
    for (size_t k = 0; k < kFactors; ++k) value += u[k] * i[k];
    return value;
  }

 private:
  /// Factors, then the bias; each from −1 to 1.
  std::array<float, kFactors + 1> traits(Entity entity, uint64_t id) const {
    std::array<float, kFactors + 1> values;
    RowInitial{RowInitial::Kind::uniform, 1, ~seed_ + static_cast<uint64_t>(entity)}.fill(id, values);
    return values;
  }

  const uint64_t seed_;
  const RowInitial noise_;
};

}  // namespace

Ratings::Ratings(std::vector<Rating> ratings, std::string description)
    : columns_{{"user", ElementType::i64, {}},
               {"item", ElementType::i64, {}},
               {"rating", ElementType::f32, {}}},
      ratings_(std::move(ratings)),
      description_(std::move(description)) {}

Status Ratings::fill(std::span<const uint32_t> indices, Batch& batch) const {
  batch.reshape(columns_, indices.size());
  const auto users = batch.values<int64_t>("user"), items = batch.values<int64_t>("item");
  const auto values = batch.values<float>("rating");
  for (size_t i = 0; i < indices.size(); ++i) {
    const Rating& rating = ratings_[indices[i]];
    users[i] = static_cast<int64_t>(rating.user);
    items[i] = static_cast<int64_t>(rating.item);
    values[i] = rating.value;
  }
  return {};
}

Result<std::unique_ptr<Dataset>> openRatings(const std::string& argument, Split split, uint64_t seed) {
  constexpr uint64_t kSamplesMax = 100'000'000, kNumbersMax = std::numeric_limits<uint32_t>::max();
  NamedOptions options("data set", "ratings", argument);
  uint64_t samples = options.count("samples", 100'000, 9, kSamplesMax);
  const auto users = static_cast<uint32_t>(options.count("users", 2000, 1, kNumbersMax));
  const auto items = static_cast<uint32_t>(options.count("items", 1000, 1, kNumbersMax));
  const auto noise = static_cast<float>(options.number("noise", 0.3, 0, 100));
  PSD_RETURN_IF_ERROR(options.finish());

  const uint64_t first = split == Split::train ? 0 : samples;  // the test split has different noise
  if (split == Split::test) samples /= 9;
  Random random(seed, static_cast<uint64_t>(split));
  const Taste taste(seed, noise);
  std::vector<Rating> ratings(samples);
  for (uint64_t i = 0; i < samples; ++i) {
    Rating& rating = ratings[i];
    rating.user = taste.idOf(Taste::Entity::user, random.below(users));
    rating.item = taste.idOf(Taste::Entity::item, random.below(1 + random.below(items)));
    rating.value = taste.rate(rating.user, rating.item, first + i);
  }
  return std::unique_ptr<Dataset>(
      std::make_unique<Ratings>(std::move(ratings), fmt::format("{} synthetic ratings", samples)));
}

}  // namespace psd

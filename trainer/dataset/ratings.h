#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// One user's rating of one item. A value type.
struct Rating {
  uint64_t user = 0, item = 0;  ///< below 2^63
  float value = 0;
};

/// Ratings with the columns "user" and "item", i64 ids below 2^63, and "rating", f32. Immutable, so
/// thread-safe.
class Ratings : public Dataset {
 public:
  Ratings(std::vector<Rating> ratings, std::string description);

  size_t sampleCount() const override { return ratings_.size(); }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return description_; }
  Status fill(std::span<const uint32_t> indices, Batch& batch) const override;

 private:
  const std::vector<ColumnSpec> columns_;
  const std::vector<Rating> ratings_;
  const std::string description_;
};

/// Synthetic ratings, generated without files. `argument`: "[option=value,…]", with
///
///   samples=100000   training samples; a ninth as many test samples
///   users=2000       number of users; ids are spread over all numbers below 2^63
///   items=1000       number of items; the first ones are rated more often
///   noise=0.3        standard deviation of the noise: the lower bound of any model's RMSE
///
/// A rating is 3.5, a bias of the user and of the item, the product of four hidden factors of each, and
/// noise. A pure function of the arguments, the same on every machine. Errors name the option.
Result<std::unique_ptr<Dataset>> openRatings(const std::string& argument, Split split, uint64_t seed);

}  // namespace psd

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Who rated what, and how. A value type.
struct Rating {
  uint64_t user = 0, item = 0;  ///< below 2^63
  float value = 0;
};

/// Ratings with the columns "user" and "item", i64 ids of any size, and "rating", f32. Immutable, so
/// thread-safe.
class Ratings : public Dataset {
 public:
  Ratings(std::vector<Rating> ratings, std::string description);

  size_t sampleCount() const override { return ratings_.size(); }
  const std::vector<ColumnSpec>& columns() const override { return columns_; }
  std::string describe() const override { return description_; }
  void fill(std::span<const uint32_t> indices, Batch& batch) const override;

 private:
  const std::vector<ColumnSpec> columns_;
  const std::vector<Rating> ratings_;
  const std::string description_;
};

/// Made-up ratings, without any file. `argument`: "[option=value,…]", with
///
///   samples=100000   to train on; a ninth as many to test
///   users=2000       the ids of users and items are spread over all numbers below 2^63
///   items=1000       the first ones are rated more often
///   noise=0.3        standard deviation of what nobody can foretell: no model's RMSE comes below it
///
/// A rating is 3.5, a bias of the user and of the item, the product of four hidden factors of each, and
/// noise. A pure function of the arguments, the same on every machine. An error names the option.
Result<std::unique_ptr<Dataset>> openRatings(const std::string& argument, Split split, uint64_t seed);

}  // namespace psd

#pragma once

#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Reads ratings.csv of a MovieLens set (https://grouplens.org/datasets/movielens, ml-latest and
/// ml-latest-small) from a folder: a line of names with userId, movieId and rating among them, then a rating
/// in each line. Every tenth of them, chosen by its number alone, is of the test split. An error names the
/// file, line and column.
Result<std::unique_ptr<Dataset>> openMovielens(const std::string& folder, Split split);

}  // namespace psd

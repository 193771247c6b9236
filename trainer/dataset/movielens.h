#pragma once

#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Reads ratings.csv of a MovieLens set (https://grouplens.org/datasets/movielens, ml-latest and
/// ml-latest-small) from a folder: a header line that contains userId, movieId and rating, then one rating
/// per line. About every tenth rating, chosen by a hash of its number, belongs to the test split. Errors name
/// the file, line and column.
Result<std::unique_ptr<Dataset>> openMovielens(const std::string& folder, Split split);

}  // namespace psd

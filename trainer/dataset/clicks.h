#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// A synthetic log of ad impressions and clicks of any size, generated on demand without files or memory.
/// `argument`: "[option=value,…]", with
///
///   samples=200000   training samples; a tenth as many test samples
///   scale=100        divides the number of ids in each of the 26 categories, relative to Criteo's log
///
/// Columns: "numbers" f32[13], normally distributed; "categories" i64[26], ids from the whole 64-bit range,
/// Zipf-distributed with exponent 1.05; "label" i64, 1 for a click; "probability" f32, with which the label
/// was drawn: the prediction of an ideal model. Its log-odds are the sum of an effect per id, an effect of
/// the numbers, and an interaction between the ids of neighbouring categories. A pure function of the
/// arguments. Errors name the option.
Result<std::unique_ptr<Dataset>> openClicks(const std::string& argument, Split split, uint64_t seed);

}  // namespace psd

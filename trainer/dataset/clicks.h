#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// A made-up log of advertisements that were shown, and which of them were clicked on, as large as it is
/// asked for and without any file or memory. `argument`: "[option=value,…]", with
///
///   samples=200000   to train on; a tenth as many to test
///   scale=100        the 26 categories have as many ids as those of Criteo's log, divided by it
///
/// Columns: "numbers" f32[13], normally distributed; "categories" i64[26], of which any 64 bits are an id and
/// few ids make up most samples (Zipf, exponent 1.05); "label" i64, 1 for a click; "probability" f32, with
/// which the label was drawn: what the best of all models would say. Its logarithmic odds are a sum of an
/// effect of each id, of the numbers, and of how well the ids of two neighbouring categories go together. A
/// pure function of the arguments. An error names the option.
Result<std::unique_ptr<Dataset>> openClicks(const std::string& argument, Split split, uint64_t seed);

}  // namespace psd

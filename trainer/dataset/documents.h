#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Synthetic documents of two classes as bags of words: sparse vectors like those of RCV1 (Lewis et al.
/// 2004), any number of them, generated on demand without files or memory. `argument`: "[option=value,…]",
/// with
///
///   samples=50000    training samples; a fifth as many test samples
///   words=47236      size of the vocabulary; word frequencies follow Zipf's law with exponent 1.05
///   length=76        words per document
///   noise=0.3        standard deviation of the label noise, relative to a margin of deviation 1
///
/// Columns: "words" i64[length], 0 being the most frequent word; "weights" f32[length], larger for rarer
/// words, with an L2 norm of 1; "label" i64, 0 or 1. A word that occurs twice counts twice. A pure function
/// of the arguments. Errors name the option.
Result<std::unique_ptr<Dataset>> openDocuments(const std::string& argument, Split split, uint64_t seed);

}  // namespace psd

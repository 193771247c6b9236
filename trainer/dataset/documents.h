#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Made-up documents of two kinds, as bags of words: sparse vectors in the manner of RCV1 (Lewis et al.
/// 2004), as large as they are asked for and without any file or memory. `argument`: "[option=value,…]", with
///
///   samples=50000    to train on; a fifth as many to test
///   words=47236      that there are; a few of them make up most documents (Zipf, exponent 1.05)
///   length=76        words in each document
///   noise=0.3        how much of the label is chance: the deviation beside a margin of deviation 1
///
/// Columns: "words" i64[length], from 0, the commonest; "weights" f32[length], larger for rarer words, the
/// sum of their squares 1; "label" i64, 0 or 1. A word that comes twice counts twice. A pure function of the
/// arguments. An error names the option.
Result<std::unique_ptr<Dataset>> openDocuments(const std::string& argument, Split split, uint64_t seed);

}  // namespace psd

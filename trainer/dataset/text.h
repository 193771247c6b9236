#pragma once

#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Column of texts: i64 [length + 1], the numbers of successive tokens. Of a sample, the first `length` are
/// what a language model is given, and the last `length` what it is to predict.
inline constexpr std::string_view kTokens = "tokens";

/// A text file in UTF-8, for language models. `argument`: "FILE[:option=value,…]", with
///
///   level=word|char    what a token is (cutText())
///   vocabulary=10000   numbers of tokens, 0 for all that are not among the commonest of the training part
///   length=32          tokens of a sample that are predicted
///
/// The first nine tenths of the tokens are the training part, the last tenth is the test part. Each is cut
/// into samples one after the other; what is left at its end is in none. A pure function of the file and the
/// options, so that all trainers have the same samples. An error names the file or the option.
Result<std::unique_ptr<Dataset>> openText(const std::string& argument, Split split);

/// Tokens of a sample that a language model is to predict; 0 where the samples are no texts. A pure function.
uint64_t tokensPerSample(const Dataset& dataset);

}  // namespace psd

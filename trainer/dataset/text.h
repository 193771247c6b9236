#pragma once

#include <memory>
#include <string>

#include "common/status/status.h"
#include "trainer/dataset/dataset.h"

namespace psd {

/// Column of texts: i64 [length + 1], the numbers of successive tokens. The first `length` tokens of a sample
/// are the input of a language model, the last `length` its targets.
inline constexpr std::string_view kTokens = "tokens";

/// A text file in UTF-8, for language models. `argument`: "FILE[:option=value,…]", with
///
///   level=word|char    unit of a token (cutText())
///   vocabulary=10000   token numbers; 0 stands for all but the most frequent tokens of the training part
///   length=32          predicted tokens per sample
///
/// The first nine tenths of the tokens are the training part, the last tenth is the test part. Each is cut
/// into consecutive samples; a remainder at its end is dropped. A pure function of the file and the options,
/// so that all trainers have the same samples. Errors name the file or the option.
Result<std::unique_ptr<Dataset>> openText(const std::string& argument, Split split);

/// Predicted tokens per sample; 0 if the samples are not texts. A pure function.
uint64_t tokensPerSample(const Dataset& dataset);

}  // namespace psd

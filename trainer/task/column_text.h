#pragma once

#include <string>
#include <string_view>

#include "common/status/status.h"
#include "trainer/task/batch.h"

namespace psd {

/// Parses the part after the name of ColumnSpec::toString(): "f32[1,28,28]", "i64 below 10", "i64[any] below
/// 65", "u8". The error quotes the text and states the expected syntax.
Result<ColumnSpec> readColumn(std::string name, std::string_view text);

}  // namespace psd

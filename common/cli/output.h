#pragma once

#include "common/status/status.h"

namespace psd {

/// Writes out what standard output holds back: ErrorCode::io where that, or anything before it, could not be
/// written. Comes last.
Status finishOutput();

}  // namespace psd

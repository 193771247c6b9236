#pragma once

#include "common/status/status.h"

namespace psd {

/// Flushes standard output: ErrorCode::io if that, or any earlier write to it, failed. Call it last.
Status finishOutput();

}  // namespace psd

#pragma once

namespace psd {

/// The psd-executor program. Returns its exit status: 0, 1 (failed) or 2 (wrong usage). An error is printed
/// to standard error as one line that starts with "psd-executor: ".
int runExecutor(int argc, const char* const* argv);

}  // namespace psd

#pragma once

namespace psd {

/// The whole of psd-executor: exit status 0, 1 (failed) or 2 (wrong usage). Problems go to standard error as
/// one line that begins with "psd-executor: ".
int runExecutor(int argc, const char* const* argv);

}  // namespace psd

#include "common/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include <unistd.h>

namespace psd {

Status finishOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  // An earlier write has failed and left no reason: another one fails for the same, unless that has passed.
  if (errno == 0 && ::write(STDOUT_FILENO, "\n", 1) == 1) errno = 0;
  return {ErrorCode::io,
          std::string("standard output: ") + (errno == 0 ? "could not be written" : std::strerror(errno))};
}

}  // namespace psd

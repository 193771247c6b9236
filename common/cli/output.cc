#include "common/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace psd {

Status finishOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  // An earlier failed write has left no reason.
  return {ErrorCode::io,
          std::string("standard output: ") + (errno == 0 ? "could not be written" : std::strerror(errno))};
}

}  // namespace psd

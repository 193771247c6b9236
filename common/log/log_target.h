#pragma once

#include <string>
#include <string_view>

#include "common/os/socket.h"
#include "common/status/status.h"

namespace psd {

/// A log's destination: a file opened for append, which may be moved away, or standard error. Calls block as
/// long as the file system or the reader of standard error does. Belongs to the log's thread.
class LogTarget {
 public:
  /// Opens the file and creates it if missing; an empty path is standard error. Errors name the file and the
  /// reason.
  static Result<LogTarget> open(const std::string& path);
  /// Reopens the path; after an error the open file stays in use.
  Status reopen();
  /// Writes all of it, or fails with the reason. The next write after a failure starts on a new line.
  Status write(std::string_view text);

 private:
  LogTarget(std::string path, OwnFd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  OwnFd file_;         ///< none: standard error
  bool torn_ = false;  ///< a write failed within a line
};

}  // namespace psd

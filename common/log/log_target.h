#pragma once

#include <string>
#include <string_view>

#include "common/os/socket.h"
#include "common/status/status.h"

namespace psd {

/// The file of a log, appended to, which may be moved away meanwhile, or standard error. Its calls block as
/// long as the file system or the reader of standard error does. Belongs to the log's thread.
class LogTarget {
 public:
  /// Opens the file, which it creates where it is missing; an empty path is standard error. Errors name the
  /// file and the reason.
  static Result<LogTarget> open(const std::string& path);
  /// Opens the path again; after an error the file that is open stays.
  Status reopen();
  /// Writes all of it, or fails with the reason. The line after a failure begins on a line of its own.
  Status write(std::string_view text);

 private:
  LogTarget(std::string path, OwnFd file) : path_(std::move(path)), file_(std::move(file)) {}

  std::string path_;
  OwnFd file_;         ///< none: standard error
  bool torn_ = false;  ///< a write failed within a line
};

}  // namespace psd

#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <spdlog/details/file_helper.h>
#include <spdlog/sinks/base_sink.h>

#include "common/status/status.h"

namespace psd {

/// The file of a log, appended to, which may be moved away meanwhile. Thread-safe.
class LogFile final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  /// Opens the file, which it makes where it is missing. Errors name the file and the reason.
  static Result<std::shared_ptr<LogFile>> open(const std::string& path);
  /// Goes on in the file that has the path now; after an error in the file that was open before.
  Status reopen();

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override;

 private:
  using File = std::unique_ptr<spdlog::details::file_helper>;
  LogFile(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}
  static Result<File> openFile(const std::string& path);

  const std::string path_;
  File file_;  ///< guarded by the base's mutex_
};

/// LogFile::reopen() for the logger that initLogging() set; nothing to do when that has no file.
Status reopenLogFile();

}  // namespace psd

#include "common/log/log_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <spdlog/spdlog.h>

#include "common/text/text.h"

namespace psd {

Result<LogFile::File> LogFile::openFile(const std::string& path) {
  // spdlog would make the folder.
  const auto folder = std::filesystem::path(path).parent_path();
  std::error_code unknown;  // where it may not be looked for, opening the file tells why
  if (!folder.empty() && !std::filesystem::exists(folder, unknown) && !unknown) {
    return Error{ErrorCode::invalidArgument,
                 "log.file: " + quotedPath(path) + ": there is no folder " + quotedPath(folder.string())};
  }
  auto file = std::make_unique<spdlog::details::file_helper>();
  try {
    file->open(path);
  } catch (const spdlog::spdlog_ex&) {
    return Error{ErrorCode::invalidArgument, "log.file: " + quotedPath(path) + ": " + std::strerror(errno)};
  }
  return file;
}

Result<std::shared_ptr<LogFile>> LogFile::open(const std::string& path) {
  PSD_ASSIGN_OR_RETURN(File file, openFile(path));
  return std::shared_ptr<LogFile>(new LogFile(path, std::move(file)));
}

Status LogFile::reopen() {
  PSD_ASSIGN_OR_RETURN(File next, openFile(path_));
  const std::lock_guard lock(mutex_);
  file_ = std::move(next);
  return {};
}

void LogFile::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  formatter_->format(message, line);
  file_->write(line);
}

void LogFile::flush_() { file_->flush(); }

Status reopenLogFile() {
  for (const spdlog::sink_ptr& sink : spdlog::default_logger()->sinks()) {
    if (const auto file = std::dynamic_pointer_cast<LogFile>(sink)) return file->reopen();
  }
  return {};
}

}  // namespace psd

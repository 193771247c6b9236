#include "trainer/loop/json_lines.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace psd {

namespace {

/// Whether the last line of the file is incomplete because its writer was killed.
bool endsInMidLine(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  return file.seekg(-1, std::ios::end) && file.get() != '\n';
}

}  // namespace

JsonLines::JsonLines(std::string path) : path_(std::move(path)), file_(path_, std::ios::app) {
  if (file_ && endsInMidLine(path_)) file_ << '\n';
}

Result<std::unique_ptr<JsonLines>> JsonLines::create(const std::string& path) {
  errno = 0;
  std::unique_ptr<JsonLines> lines(new JsonLines(path));
  if (!lines->file_) return Error{ErrorCode::io, path + ": cannot be written: " + std::strerror(errno)};
  return lines;
}

Status JsonLines::finish() {
  file_.close();
  if (file_) return {};
  return {ErrorCode::io, path_ + ": not every line could be written; is the disk full?"};
}

}  // namespace psd

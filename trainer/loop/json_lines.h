#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "common/status/status.h"

namespace psd {

/// Appends to a file of one JSON object per line, so that a restarted program continues the file. Each line
/// is flushed, so that the file can be followed. Owned by one thread.
class JsonLines {
 public:
  /// Opens or creates the file. Errors name the file and the reason.
  static Result<std::unique_ptr<JsonLines>> create(const std::string& path);

  /// `object`: without a line end.
  void add(const std::string& object) { file_ << object << '\n' << std::flush; }
  /// Closes the file; an error if a line could not be written.
  Status finish();

 private:
  explicit JsonLines(std::string path);
  std::string path_;
  std::ofstream file_;
};

}  // namespace psd

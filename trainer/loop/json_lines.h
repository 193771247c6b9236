#pragma once

#include <fstream>
#include <memory>
#include <string>

#include "common/status/status.h"

namespace psd {

/// A file of one JSON object per line, to which is added what a program that goes on in another's place has
/// to say. Each line reaches the file at once, so that it can be followed. Owned by one thread.
class JsonLines {
 public:
  /// Errors name the file and the reason.
  static Result<std::unique_ptr<JsonLines>> create(const std::string& path);

  /// `object`: without a line end.
  void add(const std::string& object) { file_ << object << '\n' << std::flush; }
  /// Whether every line was written.
  Status finish();

 private:
  explicit JsonLines(std::string path);
  std::string path_;
  std::ofstream file_;
};

}  // namespace psd

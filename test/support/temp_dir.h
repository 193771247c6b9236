#pragma once

#include <string>

namespace psd::testing {

/// A fresh folder that is removed with its content at the end of its scope. Owned by one thread.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Writes `text` to `path`, or ends the test program if it cannot.
void writeFile(const std::string& path, const std::string& text);
/// The file's bytes, or an empty string if it cannot be read.
std::string readFile(const std::string& path);

}  // namespace psd::testing

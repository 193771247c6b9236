#include "trainer/dataset/whole_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace psd {

Result<std::string> readWholeFile(const std::string& path, uint64_t bytesMax) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);  // also fails for a folder
  if (error) return Error{ErrorCode::io, path + ": " + error.message()};
  if (bytes > bytesMax) {
    return Error{ErrorCode::io, fmt::format("{}: {} bytes; expected at most {}", path, bytes, bytesMax)};
  }
  std::string text(bytes, '\0');
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return Error{ErrorCode::io, path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read")};
  }
  return text;
}

}  // namespace psd

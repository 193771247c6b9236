#pragma once

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "common/text/text.h"
#include "trainer/model/network.h"

namespace psd {

/// The file in a user's own model that declares its inputs.
inline constexpr const char* kDeclarationFile = "psd.json";

/// Throws a NetworkError that names the file if it cannot be opened.
inline void requireFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    throw NetworkError(quotedPath(path) + " is not a regular file");  // such as a pipe
  }
  errno = 0;
  if (!std::ifstream(path, std::ios::binary)) {
    throw NetworkError(quotedPath(path) + ": " + std::strerror(errno != 0 ? errno : ENOENT));
  }
}

/// Runs call() and adds the file's name to its NetworkErrors.
template <class Call>
auto withFileName(const std::string& path, const Call& call) {
  try {
    return call();
  } catch (const ParameterWritten& error) {
    throw ParameterWritten(quotedPath(path) + ": " + error.what());
  } catch (const NetworkError& error) {
    throw NetworkError(quotedPath(path) + ": " + error.what(), error.code());
  }
}

}  // namespace psd

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

/// What stands in an own model's file and says what it takes.
inline constexpr const char* kDeclarationFile = "psd.json";

/// NetworkError, which names the file, where it is not there.
inline void requireFile(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    throw NetworkError(quotedPath(path) + " is no file that can be read at any place");  // as a pipe
  }
  errno = 0;
  if (!std::ifstream(path, std::ios::binary)) {
    throw NetworkError(quotedPath(path) + ": " + std::strerror(errno != 0 ? errno : ENOENT));
  }
}

/// call(), whose complaints get the file's name.
template <class Call>
auto blaming(const std::string& path, const Call& call) {
  try {
    return call();
  } catch (const ParameterWritten& error) {
    throw ParameterWritten(quotedPath(path) + ": " + error.what());
  } catch (const NetworkError& error) {
    throw NetworkError(quotedPath(path) + ": " + error.what(), error.code());
  }
}

}  // namespace psd

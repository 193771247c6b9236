#include "common/os/text_file.h"

#include <span>

namespace psd {

Result<std::string> readText(Env& env, const std::string& path, uint64_t bytesMax, std::string_view what) {
  PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
  if (file->size() > bytesMax) {
    return Error{ErrorCode::io, "'" + path + "': holds " + std::to_string(file->size()) + " bytes; " +
                                    std::string(what) + " has at most " + std::to_string(bytesMax)};
  }
  std::string text(file->size(), '\0');
  PSD_RETURN_IF_ERROR(file->read(0, std::as_writable_bytes(std::span(text))));
  return text;
}

Status writeTextAtomically(Env& env, const std::string& path, std::string_view text) {
  return writeFileAtomically(env, path,
                             [&](WritableFile& file) { return file.append(std::as_bytes(std::span(text))); });
}

}  // namespace psd

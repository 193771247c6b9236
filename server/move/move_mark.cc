#include "server/move/move_mark.h"

#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/os/text_file.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/sealed_json.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "psd move", kChecksum = "crc32c";
constexpr uint64_t kBytesMax = 1u << 20;

std::string pathOf(const std::string& folder, std::string_view name) {
  return fmt::format("{}/{}", folder, name);
}

std::string textOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// A hexadecimal number other than 0; 0: invalid.
uint64_t numberIn(const Json& object, const char* key) {
  const std::string text = textOf(object, key);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  return error == std::errc() && end == text.data() + text.size() ? number : 0;
}

std::optional<std::vector<std::string>> textsOf(const Json& list) {
  if (!list.is_array()) return {};
  std::vector<std::string> texts;
  for (const Json& text : list) {
    if (!text.is_string()) return {};
    texts.push_back(text.get<std::string>());
  }
  return texts;
}

/// Nothing if the document does not describe a move.
std::optional<MoveMark> parse(const Json& document) {
  if (!document.is_object() || textOf(document, "format") != kFormat) return {};
  MoveMark mark{numberIn(document, "move"), {}, {}};
  if (mark.move == 0) return {};
  const auto to = document.find("to");
  if (to == document.end() || !to->is_array()) return {};
  for (const Json& addresses : *to) {
    auto texts = textsOf(addresses);
    if (!texts) return {};
    mark.to.push_back(*std::move(texts));
  }
  const auto from = document.find("from");
  if (from == document.end()) return mark;
  auto texts = textsOf(*from);
  mark.lead.daemon = numberIn(document, "daemon");
  if (!texts || mark.lead.daemon == 0) return {};
  mark.lead.addresses = *std::move(texts);
  return mark;
}

}  // namespace

Result<std::optional<MoveMark>> readMoveMark(Env& env, const std::string& folder, std::string_view name) {
  const std::string path = pathOf(folder, name);
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return std::optional<MoveMark>();
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(env, path, kBytesMax, "the record of a move"));
  const auto document = openSealedJson(text, kChecksum);
  auto mark = document.ok() ? parse(*document) : std::nullopt;
  if (mark) return mark;
  return Error{ErrorCode::io,
               fmt::format("'{}' is damaged, so it is unknown whether this daemon or others have the model: "
                           "remove the file to resume with this one",
                           path)};
}

Status writeMoveMark(Env& env, const std::string& folder, std::string_view name, const MoveMark& mark) {
  Json text = {{"format", kFormat}, {"move", fmt::format("{:016x}", mark.move)}, {"to", mark.to}};
  if (mark.lead.daemon != 0) {
    text["daemon"] = fmt::format("{:016x}", mark.lead.daemon);
    text["from"] = mark.lead.addresses;
  }
  PSD_RETURN_IF_ERROR(createFolderDurably(env, folder));
  return writeTextAtomically(env, pathOf(folder, name), sealJson(text, kChecksum));
}

Status removeMoveMark(Env& env, const std::string& folder, std::string_view name) {
  const std::string path = pathOf(folder, name);
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return {};
  PSD_RETURN_IF_ERROR(env.remove(path));
  return env.syncFolder(folder);
}

}  // namespace psd

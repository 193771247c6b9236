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

/// Nothing where the document is none of a move.
std::optional<MoveMark> parse(const Json& document) {
  const auto text = [](const Json& object, const char* key) {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!document.is_object() || text(document, "format") != kFormat) return {};
  MoveMark mark;
  const std::string number = text(document, "move");
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), mark.move, 16);
  if (error != std::errc() || end != number.data() + number.size() || mark.move == 0) return {};
  const auto to = document.find("to");
  if (to == document.end() || !to->is_array()) return {};
  for (const Json& addresses : *to) {
    auto& of = mark.to.emplace_back();
    if (!addresses.is_array()) return {};
    for (const Json& address : addresses) {
      if (!address.is_string()) return {};
      of.push_back(address.get<std::string>());
    }
  }
  return mark;
}

}  // namespace

Result<std::optional<MoveMark>> readMoveMark(Env& env, const std::string& folder, std::string_view name) {
  const std::string path = pathOf(folder, name);
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return std::optional<MoveMark>();
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(env, path, kBytesMax, "the mark of a move"));
  const auto document = openSealedJson(text, kChecksum);
  auto mark = document.ok() ? parse(*document) : std::nullopt;
  if (mark) return mark;
  return Error{
      ErrorCode::io,
      fmt::format("'{}' is damaged, so it is not known whether this daemon has the model or others do: "
                  "remove the file where this one is to go on with it",
                  path)};
}

Status writeMoveMark(Env& env, const std::string& folder, std::string_view name, const MoveMark& mark) {
  Json text = {{"format", kFormat}, {"move", fmt::format("{:016x}", mark.move)}, {"to", mark.to}};
  PSD_RETURN_IF_ERROR(makeLastingFolder(env, folder));
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

#include "server/checkpoint/departed.h"

#include "common/config/object_reader.h"
#include "common/os/text_file.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/sealed_json.h"

namespace psd {
namespace {

constexpr std::string_view kDepartedFormat = "psd trainers";
constexpr uint64_t kFormatVersion = 1;
constexpr std::string_view kDepartedChecksum = "crc32c";
constexpr uint64_t kBytesMax = 1ull << 30;

Result<Departed> read(const nlohmann::ordered_json& document) {
  ObjectReader in(document);
  if (in.text("format", "") != kDepartedFormat) in.fail("format", "must be \"psd trainers\"");
  if (in.integer("format_version", 0, 0, UINT64_MAX) != kFormatVersion) {
    in.fail("format_version", "must be " + std::to_string(kFormatVersion));
  }
  in.text("writer", "");
  Departed departed;
  departed.worldSize = static_cast<uint32_t>(in.integer("world_size", 0, 0, UINT32_MAX));
  for (const uint64_t rank : in.integers("departed", {})) {
    if (rank >= departed.worldSize) in.fail("departed", "must be ranks below world_size");
    departed.ranks.insert(Rank{static_cast<uint32_t>(rank)});
  }
  in.text(kDepartedChecksum, "");
  PSD_RETURN_IF_ERROR(in.finish());
  return departed;
}

}  // namespace

std::string departedPath(const std::string& folder) { return folder + "/" + std::string(kDepartedName); }

std::string formatDeparted(const Departed& departed) {
  nlohmann::ordered_json out = {{"format", kDepartedFormat},
                                {"format_version", kFormatVersion},
                                {"writer", "psd " PSD_VERSION},
                                {"world_size", departed.worldSize},
                                {"departed", nlohmann::ordered_json::array()}};
  for (const Rank rank : departed.ranks) out["departed"].push_back(rank.value);
  return sealJson(out, kDepartedChecksum);
}

Result<Departed> parseDeparted(std::string_view text, const std::string& origin) {
  const auto document = openSealedJson(text, kDepartedChecksum);
  auto departed = document.ok() ? read(*document) : Result<Departed>(document.error());
  if (departed.ok()) return departed;
  return Error{ErrorCode::io, "'" + origin + "' cannot be read: " + departed.message()};
}

Result<std::optional<std::string>> readDepartedText(Env& env, const std::string& folder) {
  const std::string path = departedPath(folder);
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return std::optional<std::string>();
  PSD_ASSIGN_OR_RETURN(std::string text, readText(env, path, kBytesMax, "a list of finished trainers"));
  return std::optional(std::move(text));
}

Result<std::optional<Departed>> readDeparted(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const std::optional<std::string> text, readDepartedText(env, folder));
  if (!text) return std::optional<Departed>();
  PSD_ASSIGN_OR_RETURN(Departed departed, parseDeparted(*text, departedPath(folder)));
  return std::optional(std::move(departed));
}

Status writeDeparted(Env& env, const std::string& folder, const Departed& departed) {
  PSD_RETURN_IF_ERROR(createFolderDurably(env, folder));
  return writeTextAtomically(env, departedPath(folder), formatDeparted(departed));
}

Status removeDeparted(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(departedPath(folder)));
  if (!there) return {};
  PSD_RETURN_IF_ERROR(env.remove(departedPath(folder)));
  return env.syncFolder(folder);
}

}  // namespace psd

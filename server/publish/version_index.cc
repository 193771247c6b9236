#include "server/publish/version_index.h"

#include <algorithm>

#include "common/config/object_reader.h"
#include "common/os/text_file.h"
#include "server/checkpoint/sealed_json.h"

namespace psd {
namespace {

constexpr std::string_view kFormat = "psd versions", kChecksum = "crc32c";
constexpr uint64_t kFormatVersion = 1;
constexpr uint64_t kBytesMax = 64u << 20;

std::string indexPath(const std::string& folder) { return folder + "/versions.json"; }

Result<VersionIndex> read(const nlohmann::ordered_json& document) {
  ObjectReader in(document);
  if (in.text("format", "") != kFormat) in.fail("format", "must be \"psd versions\"");
  if (in.integer("format_version", 0, 0, UINT64_MAX) != kFormatVersion) {
    in.fail("format_version", "must be " + std::to_string(kFormatVersion));
  }
  in.text("writer", "");
  VersionIndex index;
  index.newest = in.integer("newest", 0, 0, UINT64_MAX);
  const std::vector<uint64_t> numbers = in.integers("leased", {});
  const std::vector<uint64_t> untils = in.integers("until_unix_seconds", {});
  if (numbers.size() != untils.size()) in.fail("leased", "must be as long as until_unix_seconds");
  for (size_t i = 0; i < std::min(numbers.size(), untils.size()); i++) {
    const auto most = static_cast<uint64_t>(INT32_MAX) * 2;
    index.leasedUntil[numbers[i]] = VersionIndex::Time(std::chrono::seconds(std::min(untils[i], most)));
  }
  in.text(kChecksum, "");
  PSD_RETURN_IF_ERROR(in.finish());
  return index;
}

}  // namespace

Status writeVersionIndex(Env& env, const std::string& folder, const VersionIndex& index) {
  nlohmann::ordered_json out = {{"format", kFormat},
                                {"format_version", kFormatVersion},
                                {"writer", "psd " PSD_VERSION},
                                {"newest", index.newest},
                                {"leased", nlohmann::ordered_json::array()},
                                {"until_unix_seconds", nlohmann::ordered_json::array()}};
  for (const auto& [number, until] : index.leasedUntil) {
    out["leased"].push_back(number);
    out["until_unix_seconds"].push_back(
        std::chrono::duration_cast<std::chrono::seconds>(until.time_since_epoch()).count());
  }
  const std::string text = sealJson(out, kChecksum);
  return writeFileAtomically(env, indexPath(folder),
                             [&](WritableFile& file) { return file.append(std::as_bytes(std::span(text))); });
}

Result<std::optional<VersionIndex>> readVersionIndex(Env& env, const std::string& folder) {
  const std::string path = indexPath(folder);
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return std::optional<VersionIndex>();
  PSD_ASSIGN_OR_RETURN(const std::string text, readText(env, path, kBytesMax, "an index of versions"));
  const auto document = openSealedJson(text, kChecksum);
  auto index = document.ok() ? read(*document) : Result<VersionIndex>(document.error());
  if (index.ok()) return std::optional(*std::move(index));
  return Error{ErrorCode::io, "'" + path + "' cannot be read: " + index.message()};
}

}  // namespace psd

#include "server/publish/version_index.h"

#include <algorithm>
#include <charconv>

#include <spdlog/fmt/fmt.h>

#include "common/config/object_reader.h"
#include "common/os/text_file.h"
#include "common/types/version_info.h"
#include "server/checkpoint/sealed_json.h"

namespace psd {
namespace {

constexpr std::string_view kFormat = "psd versions", kChecksum = "crc32c";
constexpr uint64_t kFormatVersion = 1;
constexpr uint64_t kBytesMax = 64u << 20;

std::string indexPath(const std::string& folder) { return folder + "/" + kVersionIndexName; }

std::optional<uint64_t> historyIn(const std::string& text) {
  uint64_t history = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), history, 16);
  const bool whole = error == std::errc() && end == text.data() + text.size() && history != 0;
  return whole ? std::optional(history) : std::nullopt;
}

Result<VersionIndex> read(const nlohmann::ordered_json& document) {
  ObjectReader in(document);
  if (in.text("format", "") != kFormat) in.fail("format", "must be \"psd versions\"");
  if (in.integer("format_version", 0, 0, UINT64_MAX) != kFormatVersion) {
    in.fail("format_version", "must be " + std::to_string(kFormatVersion));
  }
  in.text("writer", "");
  VersionIndex index;
  index.newest = in.integer("newest", 0, 0, UINT64_MAX);
  if (const auto history = historyIn(in.text("history", ""))) {
    index.history = *history;
  } else {
    in.fail("history", "must be up to sixteen hexadecimal digits, not 0");
  }
  if (const std::string whole = in.text("whole_history", ""); !whole.empty()) {
    if (const auto history = historyIn(whole)) {
      index.wholeHistory = *history;
    } else {
      in.fail("whole_history", "must be up to sixteen hexadecimal digits, not 0");
    }
  }
  index.ahead = in.integer("ahead_of_rounds", 0, 0, kVersionNumberMax);
  index.arrived = in.integer("arrived_up_to", 0, 0, kVersionNumberMax);
  index.copied = in.boolean("copied", false);
  index.arriving = in.boolean("arriving", false);
  index.uncommitted = in.boolean("uncommitted", false);
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

std::string versionIndexText(const VersionIndex& index) {
  nlohmann::ordered_json out = {{"format", kFormat},
                                {"format_version", kFormatVersion},
                                {"writer", "psd " PSD_VERSION},
                                {"newest", index.newest},
                                {"history", fmt::format("{:016x}", index.history)},
                                {"leased", nlohmann::ordered_json::array()},
                                {"until_unix_seconds", nlohmann::ordered_json::array()}};
  if (index.wholeHistory != 0) out["whole_history"] = fmt::format("{:016x}", index.wholeHistory);
  if (index.ahead > 0) out["ahead_of_rounds"] = index.ahead;
  if (index.arrived > 0) out["arrived_up_to"] = index.arrived;
  if (index.copied) out["copied"] = true;
  if (index.arriving) out["arriving"] = true;
  if (index.uncommitted) out["uncommitted"] = true;
  for (const auto& [number, until] : index.leasedUntil) {
    out["leased"].push_back(number);
    out["until_unix_seconds"].push_back(
        std::chrono::duration_cast<std::chrono::seconds>(until.time_since_epoch()).count());
  }
  return sealJson(out, kChecksum);
}

Status writeVersionIndex(Env& env, const std::string& folder, const std::string& text) {
  return writeTextAtomically(env, indexPath(folder), text);
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

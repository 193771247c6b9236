#include "server/checkpoint/whole.h"

#include "common/checksum/crc32c.h"
#include "common/config/object_reader.h"
#include "common/os/text_file.h"
#include "common/text/text.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/sealed_json.h"

namespace psd {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kWholeFormat = "psd whole";
constexpr uint64_t kWholeVersion = 1;
constexpr std::string_view kWholeChecksum = "crc32c";
constexpr uint64_t kWholeBytesMax = 1u << 20;

std::string pathIn(const std::string& folder) { return folder + "/" + std::string(kWholeName); }

CheckpointRef readPart(ObjectReader& in) {
  CheckpointRef part;
  part.number = in.integer("number", 0, 1, UINT64_MAX);
  part.version = in.integer("version", 0, 0, UINT64_MAX);
  part.crc = readCrc(in, "manifest_crc32c");
  return part;
}

Result<WholeCheckpoint> readDocument(const Json& document) {
  ObjectReader in(document);
  if (in.text("format", "") != kWholeFormat) in.fail("format", "must be \"psd whole\"");
  if (in.integer("format_version", 0, 0, UINT64_MAX) != kWholeVersion) {
    in.fail("format_version", "must be " + std::to_string(kWholeVersion));
  }
  in.text("writer", "");
  WholeCheckpoint whole;
  whole.created = in.text("created", "");
  for (ObjectReader& part : in.objects("parts")) whole.parts.push_back(readPart(part));
  if (whole.parts.empty() || whole.parts.size() > kPartitionsMax) {
    in.fail("parts", "must be 1 to " + std::to_string(kPartitionsMax));
  }
  whole.before = in.integers("before", {});
  if (!whole.before.empty() && whole.before.size() != whole.parts.size()) {
    in.fail("before", "must be a number for each of the parts, or none");
  }
  in.text(kWholeChecksum, "");
  PSD_RETURN_IF_ERROR(in.finish());
  return whole;
}

}  // namespace

std::string formatWhole(const WholeCheckpoint& whole) {
  Json out = {{"format", kWholeFormat},   {"format_version", kWholeVersion}, {"writer", "psd " PSD_VERSION},
              {"created", whole.created}, {"parts", Json::array()},          {"before", whole.before}};
  for (const CheckpointRef& part : whole.parts) {
    out["parts"].push_back(
        {{"number", part.number}, {"version", part.version}, {"manifest_crc32c", crcText(part.crc)}});
  }
  return sealJson(out, kWholeChecksum);
}

Result<WholeCheckpoint> parseWhole(std::string_view text, const std::string& origin) {
  const auto document = openSealedJson(text, kWholeChecksum);
  auto whole = document.ok() ? readDocument(*document) : Result<WholeCheckpoint>(document.error());
  if (whole.ok()) return whole;
  return Error{ErrorCode::io, quotedPath(origin) + " cannot be read: " + whole.message()};
}

Result<std::optional<WholeCheckpoint>> readWhole(Env& env, const std::string& folder) {
  const std::string path = pathIn(folder);
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return std::optional<WholeCheckpoint>();
  PSD_ASSIGN_OR_RETURN(const std::string text,
                       readText(env, path, kWholeBytesMax, "a checkpoint of the whole model"));
  Result<WholeCheckpoint> whole = parseWhole(text, path);
  if (!whole.ok()) {
    return Error{whole.error().code,
                 whole.message() + "; move the file away; the next psd checkpoint writes a new one"};
  }
  return std::optional(*std::move(whole));
}

Status writeWhole(Env& env, const std::string& folder, const WholeCheckpoint& whole) {
  PSD_RETURN_IF_ERROR(createFolderDurably(env, folder));
  return writeTextAtomically(env, pathIn(folder), formatWhole(whole));
}

}  // namespace psd

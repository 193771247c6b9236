// The files of a checkpoint, and those beside them. Their checksums are corrected first: random bytes would
// never pass them.

#include "common/checksum/crc32c.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/store_state.h"
#include "server/checkpoint/table_export.h"
#include "test/fuzz/fuzz_list.h"
#include "test/fuzz/small_store.h"

namespace psd::fuzz {
namespace {
namespace checkpoint_fuzz {

constexpr std::string_view kManifestKey = "\n  \"manifest_crc32c\": \"", kDepartedKey = "\n  \"crc32c\": \"";

/// The number of bytes of a file that its checksum does not cover.
constexpr size_t sealBytes(std::string_view key) { return key.size() + 8 + 4; }  // digits, end of the object

/// The file whose text except the checksum is `covered`.
std::string withChecksum(std::string_view covered, std::string_view key) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc32c(bytesOf(covered)));
  return std::string(covered) + std::string(key) + digits + "\"\n}\n";
}

template <class Parse, class Format>
void readText(std::string_view covered, std::string_view key, Parse parse, Format format) {
  static_cast<void>(parse(covered, "input"));  // its checksum matches only by chance
  const auto read = parse(withChecksum(covered, key), "input");
  if (!read.ok()) return;
  const std::string text = format(*read);
  const auto again = parse(text, "input");
  require(again.ok(), "a parsed file can be printed and parsed");
  require(format(*again) == text, "a round trip preserves the text");
}

struct Saved {
  testing::MemoryEnv env;
  std::string manifest;
  std::string shard;  // bytes of the first one
  std::string rows;   // bytes of the row shard's file
  Saved() {
    saveSmallStore(env);
    manifest = env.bytes("/data/checkpoint-0000000001/manifest.json");
    shard = env.bytes("/data/checkpoint-0000000001/shard-00000.safetensors");
    rows = env.bytes("/data/checkpoint-0000000001/rows-00002-000000.safetensors");
    require(!rows.empty(), "there are rows");
  }
};

Saved& saved() {
  static Saved saved;
  return saved;
}

/// `ofRows`: the bytes are those of the row shard's file, else of the first shard's.
void readValues(const std::string& bytes, bool ofRows) {
  testing::MemoryEnv& env = saved().env;
  auto manifest = parseManifest(saved().manifest, "saved");
  require(manifest.ok(), "the manifest is whole");
  env.put("/data/checkpoint-0000000001/shard-00000.safetensors", saved().shard);
  env.put("/data/checkpoint-0000000001/rows-00002-000000.safetensors", saved().rows);
  ManifestFile& file = ofRows ? manifest->rowShards[0].files[0] : manifest->shards[0];
  env.put("/data/checkpoint-0000000001/" + file.file, bytes);
  file.bytes = bytes.size();
  file.crc = crc32c(bytesOf(bytes));
  env.put("/data/checkpoint-0000000001/manifest.json", formatManifest(*manifest));
  const auto checkpoint = openCheckpoint(env, "/data/checkpoint-0000000001");
  require(checkpoint.ok(), "its checksums are correct");
  const auto store = makeSmallStore();
  if (!restoreStore(env, *checkpoint, *store).ok()) return;
  require(exportCheckpoint(env, *checkpoint, "/model").ok(), "a restorable checkpoint can be exported");
  static_cast<void>(
      exportTable(env, *checkpoint, "t", TableFormat::csv, "/table"));  // which may have lost all rows
}

/// Input: 'm' and a manifest without its last lines, 't' and such a trainers.json, 'r' and a file of rows, or
/// anything else and a shard's file.
void run(Bytes input) {
  if (input.empty()) return;
  const std::string_view rest = textOf(input.subspan(1));
  const char what = static_cast<char>(input[0]);
  if (what == 'm') return readText(rest, kManifestKey, parseManifest, formatManifest);
  if (what == 't') return readText(rest, kDepartedKey, parseDeparted, formatDeparted);
  readValues(std::string(rest), what == 'r');
}

std::vector<std::string> seeds() {
  const std::string& manifest = saved().manifest;
  const std::string departed = formatDeparted({3, {Rank{0}, Rank{2}}});
  return {"m" + manifest.substr(0, manifest.size() - sealBytes(kManifestKey)),
          "t" + departed.substr(0, departed.size() - sealBytes(kDepartedKey)), "s" + saved().shard,
          "r" + saved().rows};
}

}  // namespace checkpoint_fuzz
}  // namespace

const FuzzTarget kCheckpointTarget{"checkpoint",
                                   "a checkpoint's manifest, trainers.json or the file of a shard or of rows",
                                   checkpoint_fuzz::run, checkpoint_fuzz::seeds};

}  // namespace psd::fuzz

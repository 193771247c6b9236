// The files of a checkpoint, and what lies beside them. Their checksums are put right first: random bytes
// would never pass them.

#include "common/checksum/crc32c.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/departed.h"
#include "server/checkpoint/store_state.h"
#include "test/fuzz/fuzz_list.h"
#include "test/fuzz/small_store.h"

namespace psd::fuzz {
namespace {

constexpr std::string_view kManifestKey = "\n  \"manifest_crc32c\": \"", kDepartedKey = "\n  \"crc32c\": \"";

/// How many bytes of a file its checksum does not cover.
constexpr size_t sealBytes(std::string_view key) { return key.size() + 8 + 4; }  // digits, end of the object

/// The file whose text but for the checksum is `covered`.
std::string withChecksum(std::string_view covered, std::string_view key) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc32c(bytesOf(covered)));
  return std::string(covered) + std::string(key) + digits + "\"\n}\n";
}

template <class Parse, class Format>
void readText(std::string_view covered, std::string_view key, Parse parse, Format format) {
  static_cast<void>(parse(covered, "input"));  // its checksum is wrong but by chance
  const auto read = parse(withChecksum(covered, key), "input");
  if (!read.ok()) return;
  const std::string text = format(*read);
  const auto again = parse(text, "input");
  require(again.ok(), "what was read can be written and read");
  require(format(*again) == text, "and is the same then");
}

struct Saved {
  testing::MemoryEnv env;
  std::string manifest;
  std::string shard;  // bytes of the first one
  Saved() {
    saveSmallStore(env);
    manifest = env.bytes("/data/checkpoint-0000000001/manifest.json");
    shard = env.bytes("/data/checkpoint-0000000001/shard-00000.safetensors");
  }
};

Saved& saved() {
  static Saved saved;
  return saved;
}

void readShard(const std::string& bytes) {
  testing::MemoryEnv& env = saved().env;
  env.put("/data/checkpoint-0000000001/shard-00000.safetensors", bytes);
  auto manifest = parseManifest(saved().manifest, "saved");
  require(manifest.ok(), "the manifest is whole");
  manifest->shards[0].bytes = bytes.size();
  manifest->shards[0].crc = crc32c(bytesOf(bytes));
  env.put("/data/checkpoint-0000000001/manifest.json", formatManifest(*manifest));
  const auto checkpoint = openCheckpoint(env, "/data/checkpoint-0000000001");
  require(checkpoint.ok(), "its checksums are right");
  const auto store = makeSmallStore();
  if (!restoreStore(env, *checkpoint, *store).ok()) return;
  require(exportCheckpoint(env, *checkpoint, "/model").ok(), "what can be restored can be exported");
}

/// Input: 'm' and a manifest without its last lines, 't' and such a trainers.json, or anything else and a
/// shard's file.
void run(Bytes input) {
  if (input.empty()) return;
  const std::string_view rest = textOf(input.subspan(1));
  const char what = static_cast<char>(input[0]);
  if (what == 'm') return readText(rest, kManifestKey, parseManifest, formatManifest);
  if (what == 't') return readText(rest, kDepartedKey, parseDeparted, formatDeparted);
  readShard(std::string(rest));
}

std::vector<std::string> seeds() {
  const std::string& manifest = saved().manifest;
  const std::string departed = formatDeparted({3, {Rank{0}, Rank{2}}});
  return {"m" + manifest.substr(0, manifest.size() - sealBytes(kManifestKey)),
          "t" + departed.substr(0, departed.size() - sealBytes(kDepartedKey)), "s" + saved().shard};
}

}  // namespace

const FuzzTarget kCheckpointTarget{
    "checkpoint", "a checkpoint's manifest, trainers.json or the file of a shard", run, seeds};

}  // namespace psd::fuzz

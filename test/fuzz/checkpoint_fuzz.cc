// The files of a checkpoint. Their checksums are put right first: random bytes would never pass them.

#include "common/checksum/crc32c.h"
#include "server/checkpoint/checkpoint_folder.h"
#include "server/checkpoint/store_state.h"
#include "test/fuzz/fuzz_list.h"
#include "test/fuzz/small_store.h"

namespace psd::fuzz {
namespace {

constexpr std::string_view kChecksumKey = "\n  \"manifest_crc32c\": \"";
constexpr size_t kChecksumBytes = kChecksumKey.size() + 8 + 4;  // eight digits, and the end of the object

/// The manifest whose text but for the checksum is `covered`.
std::string withChecksum(std::string_view covered) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc32c(bytesOf(covered)));
  return std::string(covered) + std::string(kChecksumKey) + digits + "\"\n}\n";
}

void readManifestText(std::string_view covered) {
  static_cast<void>(parseManifest(covered, "input"));  // its checksum is wrong but by chance
  const auto manifest = parseManifest(withChecksum(covered), "input");
  if (!manifest.ok()) return;
  const std::string text = formatManifest(*manifest);
  const auto again = parseManifest(text, "input");
  require(again.ok(), "a manifest that was read can be written and read");
  require(formatManifest(*again) == text, "and is the same one then");
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

/// Input: 'm' and a manifest without its last lines, or anything else and a shard's file.
void run(Bytes input) {
  if (input.empty()) return;
  const std::string_view rest = textOf(input.subspan(1));
  if (static_cast<char>(input[0]) == 'm') return readManifestText(rest);
  readShard(std::string(rest));
}

std::vector<std::string> seeds() {
  const std::string& manifest = saved().manifest;
  return {"m" + manifest.substr(0, manifest.size() - kChecksumBytes), "s" + saved().shard};
}

}  // namespace

const FuzzTarget kCheckpointTarget{"checkpoint", "a checkpoint's manifest or the file of a shard", run,
                                   seeds};

}  // namespace psd::fuzz

#include "server/checkpoint/store_at_rest.h"

#include <utility>

#include "server/checkpoint/rows_copy.h"

namespace psd {
namespace {

void describe(const ParameterBlock& block, ManifestBlock& entry) {
  entry.version = block.version();
  entry.pushed = block.pushed();
}

Status addShards(ParameterStore& store, Manifest& manifest, CheckpointWriter& writer) {
  const Lanes lanes = store.makeLanes();
  for (size_t i = 0; i < store.shardCount(); i++) {
    Shard& shard = store.shard(i);
    PSD_ASSIGN_OR_RETURN(ShardImage image, ShardImage::make(store, {&i, 1}));
    PSD_RETURN_IF_ERROR(image.copy(shard, *lanes[shard.device()]));
    describe(shard, manifest.shards[i]);
    PSD_RETURN_IF_ERROR(writer.addShard(manifest.shards[i], image.planes()));
  }
  return {};
}

Status addRows(ParameterStore& store, Manifest& manifest, CheckpointWriter& writer) {
  double pauseSeconds = 0;
  for (size_t i = 0; i < store.rowShardCount(); i++) {
    RowShard& shard = store.rowShard(i);
    describe(shard, manifest.rowShards[i]);
    RowsCopy rows(shard, false);
    for (bool more = true; more;) {
      PSD_ASSIGN_OR_RETURN(more, rows.writeSome(writer, store, manifest.rowShards[i], pauseSeconds));
    }
  }
  return {};
}

}  // namespace

Status saveAtRest(Env& env, const std::string& folder, uint64_t number, ParameterStore& store,
                  const std::vector<ManifestGroup>& groups, Consistency consistency,
                  std::optional<SavedSamples> samples) {
  std::vector<std::string> policies;
  for (const ManifestGroup& group : groups) policies.push_back(group.policy);
  Manifest manifest = describeStore(store, policies);
  manifest.created = utcNow();
  manifest.consistency = consistency;
  manifest.samples = std::move(samples);
  PSD_ASSIGN_OR_RETURN(CheckpointWriter writer, CheckpointWriter::begin(env, folder, number));
  PSD_RETURN_IF_ERROR(addShards(store, manifest, writer));
  PSD_RETURN_IF_ERROR(addRows(store, manifest, writer));
  PSD_RETURN_IF_ERROR(writer.addBuffers(manifest, store.buffers().get().set.get()));
  return writer.finish(std::move(manifest));
}

}  // namespace psd

#include "server/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include <fmt/format.h>

#include "common/checksum/crc32c.h"
#include "common/os/text_file.h"
#include "common/safetensors/safetensors.h"
#include "server/checkpoint/log_format.h"

namespace psd {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr uint64_t kManifestBytesMax = 1ull << 30;
constexpr size_t kPieceFloats = 1u << 18;  // 1 MiB per write, still in the cache for the checksum
constexpr size_t kPieceBytes = kPieceFloats * sizeof(float);

std::optional<uint64_t> numberOf(std::string_view name) {
  if (!name.starts_with(kPrefix)) return {};
  name.remove_prefix(kPrefix.size());
  uint64_t number = 0;
  auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size() || number > kFileNumberMax) return {};
  return number;
}

/// Computes the checksum of the bytes appended to a file.
class SummedFile final : public WritableFile {
 public:
  explicit SummedFile(WritableFile& file) : file_(file) {}
  Status append(std::span<const std::byte> bytes) override {
    crc_ = crc32c(bytes, crc_);
    bytes_ += bytes.size();
    return file_.append(bytes);
  }
  Status sync() override { return file_.sync(); }
  Status close() override { return file_.close(); }
  Status inPlace() const override { return file_.inPlace(); }

  uint32_t crc() const { return crc_; }
  uint64_t bytes() const { return bytes_; }

 private:
  WritableFile& file_;
  uint32_t crc_ = 0;
  uint64_t bytes_ = 0;
};

/// Removes the manifest first, because a folder without one is no checkpoint.
Status removeCheckpoint(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(std::vector<std::string> names, env.list(path));
  if (std::find(names.begin(), names.end(), kManifestName) != names.end()) {
    PSD_RETURN_IF_ERROR(env.remove(path + "/" + std::string(kManifestName)));
    PSD_RETURN_IF_ERROR(env.syncFolder(path));
    std::erase(names, kManifestName);
  }
  for (const std::string& name : names) PSD_RETURN_IF_ERROR(env.remove(path + "/" + name));
  PSD_RETURN_IF_ERROR(env.removeFolder(path));
  return env.syncFolder(folderOf(path));
}

/// The damage of a shard's file; nullopt if it is intact. An Error if the file cannot be read.
Result<std::optional<Error>> damageOf(Env& env, const std::string& path, const ManifestFile& shard) {
  const auto bad = [&](const std::string& why) {
    return std::optional(Error{ErrorCode::io, "'" + path + "' is damaged: " + why});
  };
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
  if (!there) return bad("it is missing");
  PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
  if (file->size() != shard.bytes) {
    return bad("it has " + std::to_string(file->size()) + " bytes instead of " + std::to_string(shard.bytes));
  }
  std::vector<std::byte> piece(std::min<uint64_t>(kPieceBytes, shard.bytes));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < shard.bytes; at += piece.size()) {
    piece.resize(std::min<uint64_t>(piece.size(), shard.bytes - at));
    PSD_RETURN_IF_ERROR(file->read(at, piece));
    crc = crc32c(piece, crc);
  }
  if (crc == shard.crc) return std::optional<Error>();
  return bad("its checksum is " + crcText(crc) + " instead of " + crcText(shard.crc));
}

std::string manifestPath(const std::string& path) { return path + "/" + std::string(kManifestName); }

Result<std::string> readManifestText(Env& env, const std::string& path) {
  return readText(env, manifestPath(path), kManifestBytesMax, "a manifest");
}

/// A checkpoint whose bytes were all read.
struct Verified {
  Checkpoint checkpoint;
  std::optional<Error> damage;  ///< nullopt: it is intact
};

/// Verifies one checkpoint without its bases. `crc`: expected checksum of its manifest, if known.
Result<Verified> verifyOne(Env& env, const std::string& path, std::optional<uint32_t> crc = {}) {
  Verified verified{{path, {}}, {}};
  PSD_ASSIGN_OR_RETURN(const std::string text, readManifestText(env, path));
  if (crc && crc32c(std::as_bytes(std::span(text))) != *crc) {
    verified.damage = Error{ErrorCode::io, "'" + manifestPath(path) + "' is not the one that was recorded"};
    return verified;
  }
  auto manifest = parseManifest(text, manifestPath(path));
  if (!manifest.ok()) {
    verified.damage = manifest.error();
    return verified;
  }
  verified.checkpoint.manifest = *std::move(manifest);
  for (const ManifestFile* file : filesOf(verified.checkpoint.manifest)) {
    PSD_ASSIGN_OR_RETURN(verified.damage, damageOf(env, path + "/" + file->file, *file));
    if (verified.damage) break;
  }
  return verified;
}

/// Whether each row shard of `base` can be the base of the same one in `manifest`.
bool fitsBase(const Manifest& manifest, const Manifest& base) {
  return manifest.model.signature() == base.model.signature() &&
         std::ranges::equal(manifest.rowShards, base.rowShards, [](const auto& one, const auto& before) {
           return one.range == before.range && one.tables == before.tables &&
                  (!one.since || *one.since == before.version);
         });
}

/// Verifies a checkpoint with its bases. An Error if part of it cannot be read: it may or may not be damaged.
Result<Verified> verify(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(Verified verified, verifyOne(env, path));
  std::vector<Checkpoint>& bases = verified.checkpoint.bases;  // newest first, until all are read
  while (!verified.damage) {
    const Checkpoint& newer = bases.empty() ? verified.checkpoint : bases.back();
    if (!newer.manifest.base) break;
    const auto [number, crc] = *newer.manifest.base;
    const std::string from = checkpointPath(folderOf(newer.path), number);
    const auto bad = [&](const std::string& why) {
      verified.damage = Error{ErrorCode::io, "'" + path + "' is based on '" + from + "', " + why};
    };
    PSD_ASSIGN_OR_RETURN(const bool there, env.exists(manifestPath(from)));
    if (!there) {
      bad("which does not exist");
      break;
    }
    PSD_ASSIGN_OR_RETURN(Verified base, verifyOne(env, from, crc));
    if (base.damage) {
      bad("which cannot be used: " + base.damage->message);
    } else if (!fitsBase(newer.manifest, base.checkpoint.manifest)) {
      bad("whose row shards differ");
    } else {
      bases.push_back(std::move(base.checkpoint));
    }
  }
  std::ranges::reverse(bases);
  return verified;
}

/// These checkpoints and their bases.
Result<std::set<uint64_t>> withBases(Env& env, const std::string& folder, std::span<const uint64_t> numbers) {
  std::set<uint64_t> all;
  for (uint64_t number : numbers) {
    // If a number is in the set, so are its bases.
    while (all.insert(number).second) {
      PSD_ASSIGN_OR_RETURN(const Manifest manifest, readManifest(env, checkpointPath(folder, number)));
      if (!manifest.base) break;
      number = manifest.base->number;
      PSD_ASSIGN_OR_RETURN(const bool there, env.exists(manifestPath(checkpointPath(folder, number))));
      if (!there) break;
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> rowPlaneNames(const Optimizer& optimizer) {
  std::vector<std::string> names = {"values"};
  for (const Slot& slot : optimizer.slots()) names.emplace_back(slot.name);
  return names;
}

std::string rowsPrefix(std::string_view table, size_t piece) { return fmt::format("{}/{}/", table, piece); }

Status createFolderDurably(Env& env, const std::string& folder) {
  std::vector<std::string> parents;  // those that get a new entry
  for (std::string path = folder; folderOf(path) != path; path = folderOf(path)) {
    PSD_ASSIGN_OR_RETURN(const bool there, env.exists(path));
    if (there) break;
    parents.push_back(folderOf(path));
  }
  PSD_RETURN_IF_ERROR(env.createFolder(folder));
  for (const std::string& parent : parents) PSD_RETURN_IF_ERROR(env.syncFolder(parent));
  return {};
}

std::string checkpointPath(const std::string& folder, uint64_t number) {
  char name[40];
  std::snprintf(name, sizeof name, "checkpoint-%010llu", static_cast<unsigned long long>(number));
  return folder + "/" + name;
}

Result<std::vector<uint64_t>> listCheckpoints(Env& env, const std::string& folder, bool finished) {
  PSD_ASSIGN_OR_RETURN(std::vector<std::string> names, env.list(folder));
  std::vector<uint64_t> numbers;
  for (const std::string& name : names) {
    auto number = numberOf(name);
    if (!number || checkpointPath(folder, *number) != folder + "/" + name) continue;
    if (finished) {
      PSD_ASSIGN_OR_RETURN(const bool isFinished, env.exists(manifestPath(folder + "/" + name)));
      if (!isFinished) continue;
    }
    numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

Result<uint64_t> pruneCheckpoints(Env& env, const std::string& folder, uint64_t keep,
                                  const std::set<uint64_t>& damaged, const std::set<uint64_t>& pinned) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> finished, listCheckpoints(env, folder, true));
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, listCheckpoints(env, folder, false));
  std::vector<uint64_t> usable = finished;
  std::erase_if(usable, [&](uint64_t number) { return damaged.contains(number); });
  if (usable.empty()) return 0;
  const auto kept = std::span<const uint64_t>(usable).last(std::min<uint64_t>(keep, usable.size()));
  const uint64_t oldest = kept.front();
  std::vector<uint64_t> wanted(kept.begin(), kept.end());
  std::ranges::set_intersection(usable, pinned, std::back_inserter(wanted));
  PSD_ASSIGN_OR_RETURN(const std::set<uint64_t> needed, withBases(env, folder, wanted));
  Status first;
  // Newest first, so that no checkpoint is left without its bases.
  for (auto number = all.rbegin(); number != all.rend(); ++number) {
    const bool isFinished = std::ranges::binary_search(finished, *number);
    if (*number >= usable.back() || (isFinished && *number >= oldest) || needed.contains(*number)) continue;
    Status removed = removeCheckpoint(env, checkpointPath(folder, *number));
    if (first.ok()) first = removed;
  }
  PSD_RETURN_IF_ERROR(first);
  return needed.empty() ? oldest : std::min(oldest, *needed.begin());
}

void removeUnfinished(Env& env, const std::string& folder) {
  const auto all = listCheckpoints(env, folder, false);
  if (!all.ok()) return;
  for (const uint64_t number : *all) {
    const std::string path = checkpointPath(folder, number);
    const auto names = env.list(path);
    if (!names.ok() || std::ranges::find(*names, kManifestName) != names->end()) continue;
    static_cast<void>(removeCheckpoint(env, path));
  }
}

Status removeCheckpoints(Env& env, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, listCheckpoints(env, folder, false));
  // Newest first, so that no checkpoint is left without its bases.
  for (auto number = all.rbegin(); number != all.rend(); ++number) {
    PSD_RETURN_IF_ERROR(removeCheckpoint(env, checkpointPath(folder, *number)));
  }
  return {};
}

Result<CheckpointWriter> CheckpointWriter::begin(Env& env, const std::string& folder, uint64_t number) {
  CheckpointWriter writer(env, checkpointPath(folder, number), number);
  if (number > kFileNumberMax) {
    return Error{ErrorCode::io, "'" + checkpointPath(folder, kFileNumberMax) +
                                    "' leaves no number for another checkpoint; move it away"};
  }
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(writer.path_));
  if (there) return Error{ErrorCode::io, "'" + writer.path_ + "' already exists"};
  PSD_RETURN_IF_ERROR(createFolderDurably(env, writer.path_));
  return writer;
}

Status CheckpointWriter::addShard(ManifestShard& shard, std::span<const Plane> planes) {
  char name[40];
  std::snprintf(name, sizeof name, "shard-%05u.safetensors", shard.range.id.value);
  shard.file = name;
  ModelSpec content;
  for (const Plane& plane : planes) {
    content.tensors.push_back({plane.name, DType::f32, {plane.values.size()}});
  }
  const std::map<std::string, std::string> metadata = {{"begin", std::to_string(shard.range.begin)},
                                                       {"format", "pt"},
                                                       {"shard", std::to_string(shard.range.id.value)},
                                                       {"version", std::to_string(shard.version.value)},
                                                       {"writer", "psd " PSD_VERSION}};
  return addFile(shard, [&](WritableFile& file) {
    return writeSafetensors(
        file, content, metadata,
        [&](size_t index, const std::function<Status(std::span<const float>)>& sink) -> Status {
          std::span<const float> left = planes[index].values;
          while (!left.empty()) {
            const auto piece = left.first(std::min(kPieceFloats, left.size()));
            PSD_RETURN_IF_ERROR(sink(piece));
            left = left.subspan(piece.size());
          }
          return {};
        });
  });
}

Status CheckpointWriter::addRows(ManifestRowShard& shard, const ModelSpec& model, const Optimizer& optimizer,
                                 std::span<const RowPiece> pieces, std::span<const TableExtras> besides) {
  ManifestFile entry;
  entry.file = fmt::format("rows-{:05}-{:06}.safetensors", shard.range.id.value, shard.files.size());
  ModelSpec content;
  std::vector<std::span<const std::byte>> planes;
  std::map<uint32_t, size_t> numbers;  // pieces so far, by table
  for (const RowPiece& piece : pieces) {
    const std::string prefix = rowsPrefix(model.tables[piece.table].name, numbers[piece.table]++);
    content.tensors.push_back({prefix + "keys", DType::u64, {piece.ids.size()}});
    planes.push_back(std::as_bytes(std::span(piece.ids)));
    content.tensors.push_back({prefix + "meta", DType::u64, {piece.metas.size()}});
    planes.push_back(std::as_bytes(std::span(piece.metas)));
    const std::vector<std::string> names = rowPlaneNames(optimizer);
    for (size_t i = 0; i < names.size(); i++) {
      const uint64_t width = piece.planes[i].size() / piece.ids.size();
      content.tensors.push_back({prefix + names[i], DType::f32, {piece.ids.size(), width}});
      planes.push_back(std::as_bytes(std::span(piece.planes[i])));
    }
    shard.rows += piece.ids.size();
  }
  const auto addWords = [&](const std::string& name, std::span<const uint64_t> words) {
    if (words.empty()) return;
    content.tensors.push_back({name, DType::u64, {words.size()}});
    planes.push_back(std::as_bytes(words));
  };
  for (const TableExtras& beside : besides) {
    const std::string& table = model.tables[beside.table].name;
    addWords(table + std::string(kEvictedTensor), beside.evicted);
    addWords(table + std::string(kCountsTensor), beside.counts);
    addWords(table + std::string(kCountTermsTensor), beside.countTerms);
  }
  if (content.tensors.empty()) return {};
  const std::map<std::string, std::string> metadata = {{"shard", std::to_string(shard.range.id.value)},
                                                       {"version", std::to_string(shard.version.value)},
                                                       {"writer", "psd " PSD_VERSION}};
  PSD_RETURN_IF_ERROR(addFile(entry, [&](WritableFile& file) -> Status {
    PSD_RETURN_IF_ERROR(writeSafetensorsHead(file, content, metadata));
    for (const auto& plane : planes) PSD_RETURN_IF_ERROR(file.append(plane));
    return {};
  }));
  shard.files.push_back(std::move(entry));
  return {};
}

Status CheckpointWriter::addBuffers(Manifest& manifest, const BufferSet* buffers) {
  if (!buffers) return {};
  manifest.buffers.emplace().file = "buffers.safetensors";
  return addFile(*manifest.buffers, [&](WritableFile& file) { return file.append(buffers->file()); });
}

Status CheckpointWriter::addFile(ManifestFile& entry, const std::function<Status(WritableFile&)>& write) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env_->create(path_ + "/" + entry.file));
  SummedFile summed(*file);
  PSD_RETURN_IF_ERROR(write(summed));
  PSD_RETURN_IF_ERROR(summed.sync());
  entry.bytes = summed.bytes();
  entry.crc = summed.crc();
  bytes_ += entry.bytes;
  return summed.close();
}

Status CheckpointWriter::finish(Manifest manifest) {
  manifest.number = number_;
  // The entries of the shards' files must be durable before the manifest's.
  PSD_RETURN_IF_ERROR(env_->syncFolder(path_));
  const std::string text = formatManifest(manifest);
  if (text.size() > kManifestBytesMax) {
    return {ErrorCode::io, "'" + path_ + "': its manifest would have " + std::to_string(text.size()) +
                               " bytes, more than the " + std::to_string(kManifestBytesMax) +
                               " that are allowed; fewer shards or ranks make it smaller"};
  }
  bytes_ += text.size();
  manifestCrc_ = crc32c(std::as_bytes(std::span(text)));
  const std::string path = path_ + "/" + std::string(kManifestName);
  const Status written = writeTextAtomically(*env_, path, text);
  // If it was renamed and could only not be synced, a start would find a checkpoint to which no log belongs.
  if (!written.ok()) (void)env_->remove(path);
  return written;
}

Result<std::shared_ptr<const BufferSet>> readBuffers(Env& env, const Checkpoint& checkpoint) {
  if (!checkpoint.manifest.buffers) return std::shared_ptr<const BufferSet>();
  const std::string path = checkpoint.path + "/" + checkpoint.manifest.buffers->file;
  PSD_ASSIGN_OR_RETURN(const auto file, env.open(path));
  std::vector<std::byte> bytes(file->size());
  PSD_RETURN_IF_ERROR(file->read(0, bytes));
  auto buffers = BufferSet::parse(std::move(bytes));
  const Status fits =
      buffers.ok() ? (*buffers)->checkNames(checkpoint.manifest.model) : Status(buffers.error());
  if (!fits.ok()) return Error{ErrorCode::io, "'" + path + "' is damaged: " + fits.message()};
  return buffers;
}

Result<Manifest> readManifest(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readManifestText(env, path));
  return parseManifest(text, manifestPath(path));
}

Result<uint32_t> manifestCrc(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const std::string text, readManifestText(env, path));
  return crc32c(std::as_bytes(std::span(text)));
}

Result<Checkpoint> openCheckpoint(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(Verified verified, verify(env, path));
  if (verified.damage) return *std::move(verified.damage);
  return std::move(verified.checkpoint);
}

Result<NewestCheckpoint> newestCheckpoint(Env& env, const std::string& folder) {
  NewestCheckpoint newest;
  PSD_ASSIGN_OR_RETURN(const bool there, env.exists(folder));
  if (!there) return newest;
  PSD_ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, listCheckpoints(env, folder, true));
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    auto verified = verify(env, checkpointPath(folder, *number));
    if (!verified.ok()) {
      return Error{verified.error().code,
                   verified.message() +
                       "; the checkpoint may be intact, so no older one replaces it: try again when "
                       "it can be read, or name the one to take"};
    }
    if (!verified->damage) {
      newest.checkpoint = std::move(verified->checkpoint);
      break;
    }
    newest.damaged.push_back({*number, *std::move(verified->damage)});
  }
  return newest;
}

}  // namespace psd

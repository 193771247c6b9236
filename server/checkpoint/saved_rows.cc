#include "server/checkpoint/saved_rows.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "common/safetensors/safetensors.h"
#include "common/text/text.h"
#include "common/types/row_hash.h"

namespace psd {
namespace {

constexpr size_t kRowsAtOnce = 4096;

Error damaged(const SafetensorsReader& reader, const std::string& tensor) {
  return {ErrorCode::io,
          fmt::format("'{}' is damaged: '{}' does not fit its keys", reader.model().name, printable(tensor))};
}

template <class Value>
Status readTensor(const SafetensorsReader& reader, const std::string& name, DType dtype, uint64_t count,
                  std::span<Value> into) {
  const auto index = reader.find(name);
  if (!index) return damaged(reader, name);
  const TensorSpec& tensor = reader.model().tensors[*index];
  if (tensor.dtype != dtype || tensor.elementCount() != count) return damaged(reader, name);
  return reader.read(*index, 0, into);
}

/// A list of U64; empty if the tensor does not exist.
Result<std::vector<uint64_t>> readWords(const SafetensorsReader& reader, const std::string& name) {
  std::vector<uint64_t> words;
  const auto index = reader.find(name);
  if (!index) return words;
  words.resize(reader.model().tensors[*index].elementCount());
  PSD_RETURN_IF_ERROR(readTensor(reader, name, DType::u64, words.size(), std::span(words)));
  return words;
}

Result<SafetensorsReader> openRows(Env& env, const std::string& path, const ManifestFile& file) {
  return SafetensorsReader::open(env, path + "/" + file.file, SafetensorsReader::Takes::floatsAndIntegers);
}

/// Reads the rows of a table from the files of one row shard of one checkpoint, piece by piece. Pieces are
/// ordered by id hash; the reader also orders the rows within a piece, since the file has preserved rows
/// last. Owned by one thread.
class TableReader {
 public:
  TableReader(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table,
              const std::vector<std::string>& planes)
      : env_(env),
        path_(checkpoint.path),
        files_(checkpoint.manifest.rowShards[rowShard].files),
        spec_(checkpoint.manifest.model.tables[table]),
        planes_(planes) {}

  /// Reads the next piece; rows() is empty after the last one.
  Status next() {
    rows_ = {};
    at_ = 0;
    while (rows_.ids.empty()) {
      if (!reader_ && file_ == files_.size()) return {};
      if (!reader_) {
        PSD_ASSIGN_OR_RETURN(SafetensorsReader opened, openRows(env_, path_, files_[file_++]));
        reader_.emplace(std::move(opened));
        piece_ = 0;
      }
      const std::string prefix = rowsPrefix(spec_.name, piece_++);
      if (reader_->find(prefix + "keys")) {
        PSD_RETURN_IF_ERROR(read(prefix));
      } else {
        reader_.reset();
      }
    }
    return {};
  }
  /// The rows of the piece, in file order.
  SavedRows& rows() { return rows_; }
  bool ended() const { return at_ == rows_.size(); }
  /// The next row by hash: its index in rows(), and its hash.
  size_t at() const { return order_[at_].second; }
  uint64_t hash() const { return order_[at_].first; }
  Status advance() { return ++at_ < rows_.size() ? Status() : next(); }

  /// Hashes of the ids that the checkpoint lists as evicted, ascending.
  Result<std::vector<uint64_t>> evicted() const {
    std::vector<uint64_t> hashes;
    for (const ManifestFile& file : files_) {
      PSD_ASSIGN_OR_RETURN(const SafetensorsReader reader, openRows(env_, path_, file));
      PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> ids,
                           readWords(reader, spec_.name + std::string(kEvictedTensor)));
      for (const uint64_t id : ids) hashes.push_back(rowHash(id));
    }
    std::ranges::sort(hashes);
    return hashes;
  }

 private:
  Status read(const std::string& prefix) {
    const uint64_t count = reader_->model().tensors[*reader_->find(prefix + "keys")].elementCount();
    rows_.ids.resize(count);
    std::vector<uint64_t> words(count);
    PSD_RETURN_IF_ERROR(readTensor(*reader_, prefix + "keys", DType::u64, count, std::span(rows_.ids)));
    PSD_RETURN_IF_ERROR(readTensor(*reader_, prefix + "meta", DType::u64, count, std::span(words)));
    for (const uint64_t word : words) rows_.metas.push_back({word});
    for (const std::string& name : planes_) {
      const auto index = reader_->find(prefix + name);
      const uint64_t values = index ? reader_->model().tensors[*index].elementCount() : 0;
      const bool fits = values == count * spec_.dim || (name != "values" && values == count);
      if (!fits) return damaged(*reader_, prefix + name);
      auto& plane = rows_.planes.emplace_back(values);
      PSD_RETURN_IF_ERROR(readTensor(*reader_, prefix + name, DType::f32, values, std::span(plane)));
    }
    order_.clear();
    for (size_t i = 0; i < count; i++) order_.emplace_back(rowHash(rows_.ids[i]), i);
    std::ranges::sort(order_);
    return {};
  }

  Env& env_;
  const std::string path_;
  const std::vector<ManifestFile>& files_;
  const TableSpec& spec_;
  const std::vector<std::string>& planes_;
  std::optional<SafetensorsReader> reader_;
  size_t file_ = 0, piece_ = 0;
  SavedRows rows_;
  std::vector<std::pair<uint64_t, size_t>> order_;  // hash and index in rows_, by hash
  size_t at_ = 0;
};

/// One checkpoint of a chain.
struct Link {
  TableReader reader;
  std::vector<uint64_t> evicted;  ///< hashes, ascending: rows of older checkpoints that no longer exist
};

/// The checkpoints that make up a row shard, newest first.
std::vector<const Checkpoint*> chainOf(const Checkpoint& checkpoint, size_t rowShard) {
  std::vector<const Checkpoint*> chain = {&checkpoint};
  for (auto base = checkpoint.bases.rbegin(); base != checkpoint.bases.rend(); ++base) {
    if (!chain.back()->manifest.rowShards[rowShard].since) break;
    chain.push_back(&*base);
  }
  return chain;
}

void append(SavedRows& out, const SavedRows& from, size_t at) {
  out.ids.push_back(from.ids[at]);
  out.metas.push_back(from.metas[at]);
  out.planes.resize(from.planes.size());
  for (size_t i = 0; i < from.planes.size(); i++) {
    const size_t width = from.planes[i].size() / from.size();
    const auto begin = from.planes[i].begin() + static_cast<ptrdiff_t>(at * width);
    out.planes[i].insert(out.planes[i].end(), begin, begin + static_cast<ptrdiff_t>(width));
  }
}

/// Whether the row with that hash, found in links[at], was evicted later.
bool evictedLater(const std::vector<Link>& links, size_t at, uint64_t hash) {
  return std::any_of(links.begin(), links.begin() + static_cast<ptrdiff_t>(at),
                     [&](const Link& newer) { return std::ranges::binary_search(newer.evicted, hash); });
}

/// Merges the rows of all links, newest first: for each id, the newest row wins.
Status merge(std::vector<Link>& links, const std::function<Status(SavedRows& rows)>& visit) {
  SavedRows out;
  while (true) {
    std::optional<size_t> first;
    for (size_t i = 0; i < links.size(); i++) {
      if (links[i].reader.ended()) continue;
      if (!first || links[i].reader.hash() < links[*first].reader.hash()) first = i;
    }
    if (!first) break;
    const uint64_t hash = links[*first].reader.hash();
    if (!evictedLater(links, *first, hash)) {
      append(out, links[*first].reader.rows(), links[*first].reader.at());
    }
    for (size_t i = *first; i < links.size(); i++) {
      TableReader& reader = links[i].reader;
      if (!reader.ended() && reader.hash() == hash) PSD_RETURN_IF_ERROR(reader.advance());
    }
    if (out.size() < kRowsAtOnce) continue;
    PSD_RETURN_IF_ERROR(visit(out));
    out = {};
  }
  return out.size() > 0 ? visit(out) : Status();
}

}  // namespace

Status forEachRows(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table,
                   const std::vector<std::string>& planes,
                   const std::function<Status(SavedRows& rows)>& visit) {
  const std::vector<const Checkpoint*> chain = chainOf(checkpoint, rowShard);
  if (chain.size() == 1) {
    TableReader reader(env, checkpoint, rowShard, table, planes);
    PSD_RETURN_IF_ERROR(reader.next());
    while (!reader.ended()) {
      PSD_RETURN_IF_ERROR(visit(reader.rows()));
      PSD_RETURN_IF_ERROR(reader.next());
    }
    return {};
  }
  std::vector<Link> links;
  for (const Checkpoint* link : chain) {
    links.push_back({TableReader(env, *link, rowShard, table, planes), {}});
    PSD_ASSIGN_OR_RETURN(links.back().evicted, links.back().reader.evicted());
    PSD_RETURN_IF_ERROR(links.back().reader.next());
  }
  return merge(links, visit);
}

Status restoreCounts(Env& env, const Checkpoint& checkpoint, size_t rowShard, uint32_t table, RowGate& gate) {
  const std::string& name = checkpoint.manifest.model.tables[table].name;
  for (const ManifestFile& file : checkpoint.manifest.rowShards[rowShard].files) {
    PSD_ASSIGN_OR_RETURN(const SafetensorsReader reader, openRows(env, checkpoint.path, file));
    PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> terms,
                         readWords(reader, name + std::string(kCountTermsTensor)));
    if (terms.empty()) continue;
    const auto bad = [&] { return damaged(reader, name + std::string(kCountsTensor)); };
    if (terms.size() != 2 || terms[0] > UINT32_MAX || terms[1] > UINT32_MAX) return bad();
    const AdmissionFilter::Terms of{static_cast<uint32_t>(terms[0]), static_cast<uint32_t>(terms[1])};
    PSD_ASSIGN_OR_RETURN(const std::vector<uint64_t> counts,
                         readWords(reader, name + std::string(kCountsTensor)));
    if (!of.valid() || !gate.filterOf(of).restore(counts)) return bad();
  }
  return {};
}

}  // namespace psd

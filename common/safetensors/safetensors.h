#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/os/env.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// The header entry of a tensor in a .safetensors file. A value type.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< as in the file, even if unsupported
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  ///< bytes from the end of the header

  /// Human-readable: "position_ids I64[1,4]".
  std::string toString() const;
};

/// The entries of a model's tensors, in its order and without gaps.
std::vector<SafetensorsEntry> safetensorsEntries(const ModelSpec& model);

/// Bytes per element of this safetensors dtype; 0: unknown dtype.
uint64_t safetensorsElementBytes(std::string_view dtype);

/// Key of a file's metadata: the names of those tensors that are a model's buffers, as a JSON list.
inline constexpr std::string_view kBuffersMetadata = "psd.buffers";

/// Parses a header into its tensors, in the order of their data; `dataBytes` is the size of the data after
/// the header. The error says how the header is damaged, and does not name the file.
Result<std::vector<SafetensorsEntry>> parseSafetensorsHeader(std::string_view header, uint64_t dataBytes);

/// Reads a .safetensors file: 8 bytes of header length (little-endian), a JSON header, then the tensors'
/// bytes. It reads F32, BF16 and F16 tensors, and on request U64; buffers (kBuffersMetadata) are listed and
/// read as bytes; others, empty ones and those whose names are invalid in a model are only listed. Every
/// error names the file and, if possible, the tensor. Thread-safe once open.
class SafetensorsReader {
 public:
  enum class Takes { floats, floatsAndIntegers };
  static Result<SafetensorsReader> open(Env& env, const std::string& path, Takes takes = Takes::floats);

  /// The readable tensors, at least one, in the order of their data in the file.
  const ModelSpec& model() const { return model_; }
  /// A tensor that cannot be read, and the reason: "psd reads F32, BF16 and F16".
  struct Unread {
    SafetensorsEntry entry;
    std::string why;
  };
  const std::vector<Unread>& unread() const { return unread_; }
  /// "tensor position_ids I64[1,4] is not read: psd reads F32, BF16 and F16" for the first few; empty if all
  /// are read.
  std::string describeUnread() const;
  /// A model's buffers, in the order of their data in the file.
  const std::vector<SafetensorsEntry>& buffers() const { return buffers_; }
  std::optional<size_t> find(std::string_view name) const;
  /// The index of the tensor with that name and shape, of numbers that read() converts; modelMismatch if
  /// there is none.
  Result<size_t> find(const TensorSpec& tensor) const;
  /// Reads elements [offset, offset + into.size()) of tensor `index`; of 16 bits, as float32.
  Status read(size_t index, uint64_t offset, std::span<float> into) const;
  Status read(size_t index, uint64_t offset, std::span<uint64_t> into) const;
  /// Reads all bytes of one of buffers().
  Status read(const SafetensorsEntry& buffer, std::span<std::byte> into) const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  std::shared_ptr<ReadableFile> file_;
  ModelSpec model_;
  std::vector<Unread> unread_;
  std::vector<SafetensorsEntry> buffers_;
  uint64_t dataBegin_ = 0;
  std::vector<uint64_t> beginBytes_;                // from the start of the file, per tensor
  std::unordered_map<std::string, size_t> places_;  // index by name
};

/// The head of a .safetensors file under construction: its tensors in the order of their data, without gaps.
class SafetensorsHead {
 public:
  SafetensorsHead();
  ~SafetensorsHead();
  /// Call before add().
  void addMetadata(const std::map<std::string, std::string>& metadata);
  void add(const std::string& name, std::string_view dtype, const std::vector<uint64_t>& shape,
           uint64_t bytes);
  void add(const SafetensorsEntry& entry) {
    add(entry.name, entry.dtype, entry.shape, entry.end - entry.begin);
  }
  void add(const ModelSpec& model);
  /// The length and the header, after which the data begins 8-aligned; padded with spaces to `leastBytes`.
  std::string text(uint64_t leastBytes = 0) const;

 private:
  struct Header;
  const std::unique_ptr<Header> header_;
  uint64_t offset_ = 0;
};

/// Writes the head of a .safetensors file; the caller appends the tensors' bytes, in the model's order and
/// without gaps.
Status writeSafetensorsHead(WritableFile& file, const ModelSpec& model,
                            const std::map<std::string, std::string>& metadata);

/// Passes the elements of one tensor to `sink` in order, in pieces of any size.
using TensorSource =
    std::function<Status(size_t index, const std::function<Status(std::span<const float>)>& sink)>;

/// Writes the values of a model's tensors; `source` and errors as below.
Status writeTensors(WritableFile& file, const ModelSpec& model, const TensorSource& source);

/// Writes a model as a .safetensors file, tensors in the model's order. `source` provides each tensor's
/// values and must deliver exactly its element count; they are rounded to its dtype. ErrorCode::nonFinite,
/// which names the tensor, if a value is beyond the range of f16.
Status writeSafetensors(WritableFile& file, const ModelSpec& model,
                        const std::map<std::string, std::string>& metadata, const TensorSource& source);

}  // namespace psd

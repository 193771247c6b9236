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

/// Parses a header into its tensors, in the order of their data; `dataBytes` is the size of the data after
/// the header. The error says how the header is damaged, and does not name the file.
Result<std::vector<SafetensorsEntry>> parseSafetensorsHeader(std::string_view header, uint64_t dataBytes);

/// Reads a .safetensors file: 8 bytes of header length (little-endian), a JSON header, then the tensors'
/// bytes. It reads F32, BF16 and F16 tensors, and on request U64; others, empty ones and those whose names
/// are invalid in a model are only listed. Every error names the file and, if possible, the tensor.
/// Thread-safe once open.
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
  std::optional<size_t> find(std::string_view name) const;
  /// The index of the tensor with that name and shape, of numbers that read() converts; modelMismatch if
  /// there is none.
  Result<size_t> find(const TensorSpec& tensor) const;
  /// Reads elements [offset, offset + into.size()) of tensor `index`; of 16 bits, as float32.
  Status read(size_t index, uint64_t offset, std::span<float> into) const;
  Status read(size_t index, uint64_t offset, std::span<uint64_t> into) const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  std::shared_ptr<ReadableFile> file_;
  ModelSpec model_;
  std::vector<Unread> unread_;
  std::vector<uint64_t> beginBytes_;                // from the start of the file, per tensor
  std::unordered_map<std::string, size_t> places_;  // index by name
};

/// Writes the head of a .safetensors file; the caller appends the tensors' bytes, in the model's order and
/// without gaps.
Status writeSafetensorsHead(WritableFile& file, const ModelSpec& model,
                            const std::map<std::string, std::string>& metadata);

/// Passes the elements of one tensor to `sink` in order, in pieces of any size.
using TensorSource =
    std::function<Status(size_t index, const std::function<Status(std::span<const float>)>& sink)>;

/// Writes a model as a .safetensors file, tensors in the model's order. `source` provides each tensor's
/// values and must deliver exactly its element count; they are rounded to its dtype. ErrorCode::nonFinite,
/// which names the tensor, if a value is beyond the range of f16.
Status writeSafetensors(WritableFile& file, const ModelSpec& model,
                        const std::map<std::string, std::string>& metadata, const TensorSource& source);

}  // namespace psd

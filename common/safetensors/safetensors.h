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

/// What the header of a .safetensors file says of a tensor. A value type.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  ///< as in the file, known here or not
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  ///< bytes from the end of the header

  /// As text: "position_ids I64[1,4]".
  std::string toString() const;
};

/// The tensors of a header in the order of their bytes, of which `dataBytes` follow it. The error, which does
/// not name the file, says how the header is damaged.
Result<std::vector<SafetensorsEntry>> parseSafetensorsHeader(std::string_view header, uint64_t dataBytes);

/// Reads a .safetensors file: 8 bytes of header length (little endian), a JSON header, then the tensors'
/// bytes. It gives F32 tensors, and where the caller asks for them U64; others, empty ones and those with
/// names that a model's tensors cannot have are listed alone. Every error names the file and, where it can,
/// the tensor. Thread-safe once open.
class SafetensorsReader {
 public:
  enum class Takes { floats, floatsAndIntegers };
  static Result<SafetensorsReader> open(Env& env, const std::string& path, Takes takes = Takes::floats);

  /// The tensors that can be read, at least one, in the order of their bytes in the file.
  const ModelSpec& model() const { return model_; }
  /// A tensor that cannot be read, and why: "psd reads F32".
  struct Unread {
    SafetensorsEntry entry;
    std::string why;
  };
  const std::vector<Unread>& unread() const { return unread_; }
  /// "tensor position_ids I64[1,4] is not read: psd reads F32", of the first ones; empty where all are read.
  std::string describeUnread() const;
  std::optional<size_t> find(std::string_view name) const;
  /// The place of a tensor of that name, type and shape, modelMismatch where there is none.
  Result<size_t> find(const TensorSpec& tensor) const;
  /// Reads elements [offset, offset + into.size()) of tensor `index`.
  Status read(size_t index, uint64_t offset, std::span<float> into) const;
  Status read(size_t index, uint64_t offset, std::span<uint64_t> into) const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  std::shared_ptr<ReadableFile> file_;
  ModelSpec model_;
  std::vector<Unread> unread_;
  std::vector<uint64_t> beginBytes_;                // from the start of the file, per tensor
  std::unordered_map<std::string, size_t> places_;  // of the tensors, by name
};

/// Writes the head of a .safetensors file; the bytes of the tensors are to follow, in the model's order and
/// without gaps.
Status writeSafetensorsHead(WritableFile& file, const ModelSpec& model,
                            const std::map<std::string, std::string>& metadata);

/// Hands the elements of one tensor to `sink` in order, in pieces of any size.
using TensorSource =
    std::function<Status(size_t index, const std::function<Status(std::span<const float>)>& sink)>;

/// Writes a model of f32 as a .safetensors file, tensors in the model's order. `source` gives each tensor's
/// values and must deliver exactly its element count.
Status writeSafetensors(WritableFile& file, const ModelSpec& model,
                        const std::map<std::string, std::string>& metadata, const TensorSource& source);

}  // namespace psd

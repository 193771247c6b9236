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

/// Reads a .safetensors file: 8 bytes of header length (little endian), a JSON header, then the tensors'
/// bytes. Only F32 tensors are taken, and where the caller asks for them U64. Every error names the file and,
/// where it can, the tensor. Thread-safe once open.
class SafetensorsReader {
 public:
  enum class Takes { floats, floatsAndIntegers };
  static Result<SafetensorsReader> open(Env& env, const std::string& path, Takes takes = Takes::floats);

  /// The tensors in the order of their bytes in the file.
  const ModelSpec& model() const { return model_; }
  std::optional<size_t> find(std::string_view name) const;
  /// Reads elements [offset, offset + into.size()) of tensor `index`.
  Status read(size_t index, uint64_t offset, std::span<float> into) const;
  Status read(size_t index, uint64_t offset, std::span<uint64_t> into) const;

 private:
  SafetensorsReader() = default;
  std::string path_;
  std::shared_ptr<ReadableFile> file_;
  ModelSpec model_;
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

#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/safetensors/safetensors.h"
#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// A model's buffers: tensors of any dtype that no one trains, such as running statistics, as the bytes of a
/// .safetensors file. Immutable, hence thread-safe.
class BufferSet {
 public:
  /// Checks the whole file. ErrorCode::invalidArgument names the buffer if possible.
  static Result<std::shared_ptr<const BufferSet>> parse(std::vector<std::byte> file);
  /// The set of these buffers, whose values `bytes` holds without gaps in the same order.
  static Result<std::shared_ptr<const BufferSet>> make(const std::vector<SafetensorsEntry>& entries,
                                                       std::span<const std::byte> bytes);

  std::span<const std::byte> file() const { return file_; }
  /// In the order of their values.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// `entry` is one of entries().
  std::span<const std::byte> valuesOf(const SafetensorsEntry& entry) const {
    return values().subspan(entry.begin, entry.end - entry.begin);
  }
  /// All values, without gaps.
  std::span<const std::byte> values() const { return file().subspan(dataBegin_); }
  /// ErrorCode::invalidArgument if a buffer has the name of a tensor or table of the model.
  Status checkNames(const ModelSpec& model) const;

 private:
  BufferSet(std::vector<std::byte> file, std::vector<SafetensorsEntry> entries, uint64_t dataBegin)
      : file_(std::move(file)), entries_(std::move(entries)), dataBegin_(dataBegin) {}

  const std::vector<std::byte> file_;
  const std::vector<SafetensorsEntry> entries_;
  const uint64_t dataBegin_;
};

/// Writes a model with its buffers, which may be null, as a .safetensors file: metadata psd.buffers
/// lists the buffers' names, by which SafetensorsReader tells them from tensors. `source` as in
/// writeSafetensors().
Status writeModelFile(WritableFile& file, const ModelSpec& model, const BufferSet* buffers,
                      const TensorSource& source);

/// The buffers of such a file; null if it has none.
Result<std::shared_ptr<const BufferSet>> readBuffers(const SafetensorsReader& reader);

}  // namespace psd

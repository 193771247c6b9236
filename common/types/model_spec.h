#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/row_initial.h"

namespace psd {

/// Element type of a tensor. u64 is for ids and counts in files, and not for models.
enum class DType : uint8_t { f32, bf16, f16, u64 };
/// Bytes of an element.
uint64_t dtypeBytes(DType dtype);

std::string_view dtypeName(DType dtype);
/// The dtype of a model's tensor by its name: "f32", "bf16" or "f16".
Result<DType> parseDType(std::string_view name);

/// One dense parameter tensor. Immutable value type once built.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<uint64_t> shape;  ///< row-major; an empty shape is a scalar

  /// Product of the shape, in elements.
  uint64_t elementCount() const;
  /// Human-readable: "fc1.weight f32[128,9216]".
  std::string toString() const;
  bool operator==(const TensorSpec&) const = default;
};

/// One embedding table: float32 rows of one length, keyed by id. Every 64-bit number is a valid id; a row
/// that no push has touched has the value that `initial` computes. Immutable value type once built.
struct TableSpec {
  std::string name;
  uint32_t dim = 0;  ///< float32 values of a row, 1 … kTableDimMax
  RowInitial initial;

  /// Human-readable: "item rows[32] uniform 0.01 seed 1".
  std::string toString() const;
  bool operator==(const TableSpec&) const = default;
};

/// One partition of a model that several daemons serve together; see partitionModel().
struct Partition {
  uint32_t index = 0;
  uint32_t of = 1;  ///< 1: the model is whole

  bool isWhole() const { return of == 1; }
  /// Human-readable: "partition 0 of 2", "the whole model".
  std::string toString() const;
  bool operator==(const Partition&) const = default;
};

/// The ordered lists of tensors and embedding tables that a daemon holds and its trainers train.
struct ModelSpec {
  std::string name;  ///< human-readable; not part of the signature
  std::vector<TensorSpec> tensors;
  std::vector<TableSpec> tables = {};
  Partition partition = {};
  /// Of a partition: the tensors of the whole model, which decide what must be equal in all partitions; null:
  /// unknown, or the model is whole. Not part of the signature.
  std::shared_ptr<const std::vector<TensorSpec>> whole = {};

  bool empty() const { return tensors.empty() && tables.empty(); }
  /// FNV-1a (64 bit) over the ordered names, dtypes and shapes of the tensors, the fields of the tables, and
  /// the partition of a model that is not whole. Two models may share a daemon if and only if their
  /// signatures are equal.
  uint64_t signature() const;
  /// Sum of the tensors' element counts, without layout padding. Table rows are not counted, since their
  /// number changes.
  uint64_t parameterCount() const;
  /// Whether every tensor is float32.
  bool isFloat32() const;
};

/// Largest number of partitions of a model.
inline constexpr uint32_t kPartitionsMax = 256;
/// Most addresses of one of the daemons that serve a model together.
inline constexpr uint32_t kDaemonAddressesMax = 8;

/// Validates a model from a configuration or a peer: at least one tensor or table, names of visible ASCII of
/// at most `kTensorNameBytesMax`, none repeated or reserved, no zero dimension, at most `kModelElementsMax`
/// elements in all tensors; at most `kTablesMax` tables of rows of 1 to `kTableDimMax` values. Also validates
/// the tensors of `whole`. The error names the tensor or the table.
Status validateModel(const ModelSpec& model);
inline constexpr size_t kTensorNameBytesMax = 1024;
inline constexpr std::string_view kReservedName = "__metadata__";  ///< no tensor's in a safetensors file
inline constexpr size_t kTablesMax = 4096;
inline constexpr uint32_t kTableDimMax = 4096;
inline constexpr uint64_t kModelElementsMax = 1ull << 40;

/// Whether a tensor may have this name, as validateModel() checks. The error quotes it.
Status validateTensorName(const std::string& name);

/// One line that names the first tensor or table in which two models differ, and how; empty if they are
/// equal.
std::string describeDifference(const ModelSpec& mine, std::string_view mineLabel, const ModelSpec& theirs,
                               std::string_view theirsLabel);

}  // namespace psd

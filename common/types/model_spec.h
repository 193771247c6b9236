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

/// Element type of a tensor. Models are of f32 alone; u64 is for ids and counts in files.
enum class DType : uint8_t { f32, u64 };
uint64_t dtypeBytes(DType dtype);

std::string_view dtypeName(DType dtype);
Result<DType> parseDType(std::string_view name);

/// One dense parameter tensor. Immutable value type once built.
struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<uint64_t> shape;  ///< row-major; an empty shape is a scalar

  /// Product of the shape, in elements.
  uint64_t elementCount() const;
  /// For people: "fc1.weight f32[128,9216]".
  std::string toString() const;
  bool operator==(const TensorSpec&) const = default;
};

/// One embedding table: float32 rows of one length, named by ids. Every 64-bit number is an id; a row that no
/// push has touched has the value that `initial` gives it. Immutable value type once built.
struct TableSpec {
  std::string name;
  uint32_t dim = 0;  ///< float32 values of a row, 1 … kTableDimMax
  RowInitial initial;

  /// For people: "item rows[32] uniform 0.01 seed 1".
  std::string toString() const;
  bool operator==(const TableSpec&) const = default;
};

/// Which of the partitions of a model that several daemons serve together; see partitionModel().
struct Partition {
  uint32_t index = 0;
  uint32_t of = 1;  ///< 1: the model is whole

  bool isWhole() const { return of == 1; }
  /// For people: "partition 0 of 2", "the whole model".
  std::string toString() const;
  bool operator==(const Partition&) const = default;
};

/// The ordered lists of tensors and embedding tables that a daemon holds and its trainers train.
struct ModelSpec {
  std::string name;  ///< for people; not part of the signature
  std::vector<TensorSpec> tensors;
  std::vector<TableSpec> tables = {};
  Partition partition = {};
  /// Of a partition: the tensors of the model that it is of, by which what is the same in all partitions is
  /// decided; null: nobody has told, as of a model that is whole. Not part of the signature.
  std::shared_ptr<const std::vector<TensorSpec>> whole = {};

  bool empty() const { return tensors.empty() && tables.empty(); }
  /// FNV-1a (64 bit) over the ordered names, dtypes and shapes of the tensors, what TableSpec says of the
  /// tables, and the partition of a model that is not whole. Two models may share a daemon if and only if
  /// their signatures agree.
  uint64_t signature() const;
  /// Sum of the tensors' element counts, without layout padding. Rows of tables come and go, and do not
  /// count.
  uint64_t parameterCount() const;
};

/// Into how many partitions a model may be cut.
inline constexpr uint32_t kPartitionsMax = 256;
/// Addresses of one of the daemons that serve a model together, at most.
inline constexpr uint32_t kDaemonAddressesMax = 8;

/// Checks what arrives from a config or a peer: at least one tensor or table, names of visible ASCII of at
/// most `kTensorNameBytesMax`, none repeated or reserved, no zero dimension, at most `kModelElementsMax`
/// elements in all tensors; at most `kTablesMax` tables of rows of 1 to `kTableDimMax` values. Likewise the
/// tensors of `whole`. The error names the tensor or the table.
Status validateModel(const ModelSpec& model);
inline constexpr size_t kTensorNameBytesMax = 1024;
inline constexpr std::string_view kReservedName = "__metadata__";  ///< no tensor's in a safetensors file
inline constexpr size_t kTablesMax = 4096;
inline constexpr uint32_t kTableDimMax = 4096;
inline constexpr uint64_t kModelElementsMax = 1ull << 40;

/// One line that names the first tensor or table in which two models differ, and how; empty when they agree.
std::string describeDifference(const ModelSpec& mine, std::string_view mineLabel, const ModelSpec& theirs,
                               std::string_view theirsLabel);

}  // namespace psd

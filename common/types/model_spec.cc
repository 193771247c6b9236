#include "common/types/model_spec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

#include <fmt/format.h>

#include "common/text/text.h"

namespace psd {
namespace {

class Fnv1a {
 public:
  void add(std::string_view bytes) {
    for (unsigned char byte : bytes) hash_ = (hash_ ^ byte) * 0x100000001b3ull;
  }
  void add(uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      hash_ = (hash_ ^ ((number >> shift) & 0xff)) * 0x100000001b3ull;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ull;
};

std::string quoted(const std::string& text) { return "'" + printable(text) + "'"; }

Error bad(std::string message) { return {ErrorCode::invalidArgument, std::move(message)}; }

/// Checks the name of a `kind`, "tensor" or "table".
Status checkName(const std::string& kind, const std::string& name) {
  if (name.empty()) return bad("a " + kind + " of the model has an empty name");
  if (name.size() > kTensorNameBytesMax) {
    return bad(fmt::format("{} {} has a name of {} bytes; the limit is {}", kind, quoted(name), name.size(),
                           kTensorNameBytesMax));
  }
  const auto other = std::find_if_not(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (other != name.end()) {
    return bad(fmt::format(
        "{} {} has a name with a character that is not visible ASCII: {} at byte {}", kind, quoted(name),
        *other == ' ' ? "a space" : fmt::format("0x{:02x}", static_cast<unsigned char>(*other)),
        other - name.begin()));
  }
  if (name == kReservedName) {
    return bad(fmt::format("{} {} has the name under which safetensors files keep their metadata; rename it",
                           kind, quoted(name)));
  }
  return {};
}

/// Checks the name of a `kind`, and adds it to the names of the model.
Status addName(const std::string& kind, const std::string& name,
               std::unordered_set<std::string_view>& names) {
  PSD_RETURN_IF_ERROR(checkName(kind, name));
  if (!names.insert(name).second) return bad(kind + " " + quoted(name) + " appears twice in the model");
  return {};
}

Status checkTable(const TableSpec& table) {
  if (table.dim == 0 || table.dim > kTableDimMax) {
    return bad(fmt::format("table {} has rows of {} values; the range is 1 to {}", quoted(table.name),
                           table.dim, kTableDimMax));
  }
  if (!std::isfinite(table.initial.scale) || table.initial.scale < 0) {
    return bad(fmt::format("table {} has initial values of scale {}, which must be finite and not negative",
                           quoted(table.name), table.initial.scale));
  }
  return {};
}

/// Describes the first entry in which two lists of one kind, "tensor" or "table", differ.
template <class Spec>
std::string differenceOf(const std::string& kind, const std::vector<Spec>& mine, std::string_view mineIs,
                         const std::vector<Spec>& theirs, std::string_view theirsIs) {
  const size_t shared = std::min(mine.size(), theirs.size());
  for (size_t i = 0; i < shared; i++) {
    if (mine[i] == theirs[i]) continue;
    return fmt::format("{} {} is {} in {}, but {} in {}", kind, i, mine[i].toString(), mineIs,
                       theirs[i].toString(), theirsIs);
  }
  if (mine.size() == theirs.size()) return "";
  const bool mineLonger = mine.size() > shared;
  return fmt::format("{} has {} {}s and {} has {}; the first only in {} is {}", mineIs, mine.size(), kind,
                     theirsIs, theirs.size(), mineLonger ? mineIs : theirsIs,
                     (mineLonger ? mine : theirs)[shared].toString());
}

}  // namespace

std::string_view dtypeName(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::u64: return "u64";
  }
  return "unknown";
}

uint64_t dtypeBytes(DType dtype) {
  switch (dtype) {
    case DType::f32: return sizeof(float);
    case DType::bf16:
    case DType::f16: return sizeof(uint16_t);
    case DType::u64: return sizeof(uint64_t);
  }
  return 0;
}

Result<DType> parseDType(std::string_view name) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    if (name == dtypeName(dtype)) return dtype;
  }
  return Error{ErrorCode::invalidArgument,
               "unknown dtype '" + printable(name) + "'; a tensor is f32, bf16 or f16"};
}

uint64_t TensorSpec::elementCount() const {
  uint64_t count = 1;
  for (uint64_t size : shape) count *= size;
  return count;
}

std::string TensorSpec::toString() const {
  std::string text = printable(name, kTensorNameBytesMax) + " " + std::string(dtypeName(dtype)) + "[";
  for (size_t i = 0; i < shape.size(); i++) text += (i ? "," : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string TableSpec::toString() const {
  const std::string row = fmt::format("{} rows[{}]", printable(name, kTensorNameBytesMax), dim);
  switch (initial.kind) {
    case RowInitial::Kind::zero: return row + " from 0";
    case RowInitial::Kind::uniform:
      return fmt::format("{} uniform {} seed {}", row, initial.scale, initial.seed);
    case RowInitial::Kind::normal:
      return fmt::format("{} normal {} seed {}", row, initial.scale, initial.seed);
  }
  return row;
}

std::string Partition::toString() const {
  return isWhole() ? "the whole model" : fmt::format("partition {} of {}", index, of);
}

uint64_t ModelSpec::signature() const {
  Fnv1a hash;
  for (const TensorSpec& tensor : tensors) {
    hash.add(tensor.name.size());
    hash.add(tensor.name);
    hash.add(dtypeName(tensor.dtype));
    hash.add(tensor.shape.size());
    for (uint64_t size : tensor.shape) hash.add(size);
  }
  if (!tables.empty()) hash.add("tables");
  for (const TableSpec& table : tables) {
    hash.add(table.name.size());
    hash.add(table.name);
    hash.add(uint64_t{table.dim});
    hash.add(static_cast<uint64_t>(table.initial.kind));
    hash.add(uint64_t{std::bit_cast<uint32_t>(table.initial.scale)});
    hash.add(table.initial.seed);
  }
  if (!partition.isWhole()) {
    hash.add("partition");
    hash.add(uint64_t{partition.index});
    hash.add(uint64_t{partition.of});
  }
  return hash.value();
}

uint64_t ModelSpec::parameterCount() const {
  uint64_t count = 0;
  for (const TensorSpec& tensor : tensors) count += tensor.elementCount();
  return count;
}

bool ModelSpec::isFloat32() const {
  return std::ranges::all_of(tensors, [](const TensorSpec& tensor) { return tensor.dtype == DType::f32; });
}

Status validateTensorName(const std::string& name) { return checkName("tensor", name); }

Status validateModel(const ModelSpec& model) {
  if (model.empty()) return bad("the model has neither tensors nor tables");
  if (model.partition.of > kPartitionsMax || model.partition.index >= model.partition.of) {
    return bad(fmt::format("{} of a model does not exist", model.partition.toString()));
  }
  std::unordered_set<std::string_view> names;
  uint64_t total = 0;
  for (const TensorSpec& tensor : model.tensors) {
    PSD_RETURN_IF_ERROR(addName("tensor", tensor.name, names));
    uint64_t count = 1;
    for (uint64_t size : tensor.shape) {
      if (size == 0) return bad("tensor " + quoted(tensor.name) + " has a dimension of size 0");
      if (size > kModelElementsMax / count) {
        return bad("tensor " + quoted(tensor.name) + " has more than 2^40 elements");
      }
      count *= size;
    }
    total += count;
    if (total > kModelElementsMax) return bad("the model has more than 2^40 elements");
  }
  if (model.tables.size() > kTablesMax) {
    return bad(fmt::format("the model has {} tables; the limit is {}", model.tables.size(), kTablesMax));
  }
  for (const TableSpec& table : model.tables) {
    PSD_RETURN_IF_ERROR(addName("table", table.name, names));
    PSD_RETURN_IF_ERROR(checkTable(table));
  }
  if (!model.whole) return {};
  if (model.partition.isWhole()) return bad("a whole model is not a partition of another one");
  return validateModel({model.name, *model.whole, model.tables});
}

std::string describeDifference(const ModelSpec& mine, std::string_view mineLabel, const ModelSpec& theirs,
                               std::string_view theirsLabel) {
  if (mine.partition != theirs.partition) {
    return fmt::format("{} is {}, {} is {}", mineLabel, mine.partition.toString(), theirsLabel,
                       theirs.partition.toString());
  }
  const std::string tensors = differenceOf("tensor", mine.tensors, mineLabel, theirs.tensors, theirsLabel);
  return tensors.empty() ? differenceOf("table", mine.tables, mineLabel, theirs.tables, theirsLabel)
                         : tensors;
}

}  // namespace psd

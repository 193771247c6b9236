#include "common/types/model_spec.h"

#include <algorithm>
#include <unordered_set>

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

}  // namespace

std::string_view dtypeName(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
  }
  return "unknown";
}

Result<DType> parseDType(std::string_view name) {
  if (name == "f32") return DType::f32;
  return Error{ErrorCode::invalidArgument, "unknown dtype '" + printable(name) + "'; psd stores f32"};
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

uint64_t ModelSpec::signature() const {
  Fnv1a hash;
  for (const TensorSpec& tensor : tensors) {
    hash.add(tensor.name.size());
    hash.add(tensor.name);
    hash.add(dtypeName(tensor.dtype));
    hash.add(tensor.shape.size());
    for (uint64_t size : tensor.shape) hash.add(size);
  }
  return hash.value();
}

uint64_t ModelSpec::parameterCount() const {
  uint64_t count = 0;
  for (const TensorSpec& tensor : tensors) count += tensor.elementCount();
  return count;
}

Status validateModel(const ModelSpec& model) {
  auto bad = [](std::string message) { return Status(ErrorCode::invalidArgument, std::move(message)); };
  if (model.tensors.empty()) return bad("the model has no tensors");
  std::unordered_set<std::string_view> names;
  uint64_t total = 0;
  for (const TensorSpec& tensor : model.tensors) {
    if (tensor.name.empty()) return bad("a tensor of the model has an empty name");
    if (tensor.name.size() > kTensorNameBytesMax) {
      return bad("tensor " + quoted(tensor.name) + " has a name of " + std::to_string(tensor.name.size()) +
                 " bytes; at most " + std::to_string(kTensorNameBytesMax) + " are taken");
    }
    if (!std::all_of(tensor.name.begin(), tensor.name.end(), [](char c) { return c > ' ' && c <= '~'; })) {
      return bad("a tensor of the model has a name with other characters than visible ASCII");
    }
    if (!names.insert(tensor.name).second) {
      return bad("tensor " + quoted(tensor.name) + " appears twice in the model");
    }
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
  return {};
}

std::string describeDifference(const ModelSpec& mine, std::string_view mineLabel, const ModelSpec& theirs,
                               std::string_view theirsLabel) {
  std::string mineIs(mineLabel), theirsIs(theirsLabel);
  size_t shared = std::min(mine.tensors.size(), theirs.tensors.size());
  for (size_t i = 0; i < shared; i++) {
    if (mine.tensors[i] == theirs.tensors[i]) continue;
    return "tensor " + std::to_string(i) + " is " + mine.tensors[i].toString() + " in " + mineIs + ", but " +
           theirs.tensors[i].toString() + " in " + theirsIs;
  }
  if (mine.tensors.size() == theirs.tensors.size()) return "";
  bool mineLonger = mine.tensors.size() > shared;
  const TensorSpec& extra = mineLonger ? mine.tensors[shared] : theirs.tensors[shared];
  return mineIs + " has " + std::to_string(mine.tensors.size()) + " tensors and " + theirsIs + " has " +
         std::to_string(theirs.tensors.size()) + "; the first that only " + (mineLonger ? mineIs : theirsIs) +
         " has is " + extra.toString();
}

}  // namespace psd

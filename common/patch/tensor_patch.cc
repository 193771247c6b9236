#include "common/patch/tensor_patch.h"

#include <algorithm>
#include <cstring>

#include "common/patch/changed_bits.h"
#include "common/patch/patch_block.h"

namespace psd {
namespace {

constexpr uint64_t kWord = sizeof(uint64_t);
/// Longer runs are summed in place; shorter ones word by word with other changes.
constexpr uint64_t kShortRun = 16 * kWord;
/// How many elements ahead memory is fetched.
constexpr size_t kAhead = 64;
/// A tensor is read in pieces that a second-level cache holds: a whole number of blocks of any elements.
constexpr uint64_t kPieceBytes = kPatchBlockElements * sizeof(uint64_t);

Error damaged(const char* why) { return {ErrorCode::io, why}; }

Error noBlocks() { return damaged("a changed tensor has no patch"); }

Status checkShape(const PatchedTensor& tensor) {
  if (tensor.bytes % tensor.elementBytes == 0) return {};
  return damaged("changes of elements in a tensor that is no whole number of elements");
}

/// Sets adjacent elements, which are bytes [at, at + values.size()) of the tensor.
void overwriteRun(std::span<std::byte> tensor, uint64_t at, std::span<const std::byte> values,
                  ContentSum& sum, ContentSumChanges& changes) {
  const uint64_t begin = at / kWord, end = (at + values.size() + kWord - 1) / kWord;
  if (values.size() <= kShortRun) {
    uint64_t before[kShortRun / kWord + 2];
    for (uint64_t i = begin; i < end; ++i) before[i - begin] = contentWord(tensor, i);
    std::memcpy(tensor.data() + at, values.data(), values.size());
    for (uint64_t i = begin; i < end; ++i) changes.add(i, before[i - begin], contentWord(tensor, i));
    return;
  }
  sum -= contentSum(tensor, begin, end);
  std::memcpy(tensor.data() + at, values.data(), values.size());
  sum += contentSum(tensor, begin, end);
}

/// Sets single elements. A word of the tensor is written as a whole, so that a second change in it reads what
/// the processor still holds.
template <class T>
void overwriteElements(std::span<std::byte> tensor, const PatchBlock& block, ContentSum& sum,
                       ContentSumChanges& changes) {
  const uint64_t first = block.firstElement() * sizeof(T), whole = tensor.size() / kWord;
  const std::span<const uint16_t> positions = block.positions;
  const auto placeOf = [&](size_t i) { return first + positions[i] * sizeof(T); };
  // Into the second-level cache, which holds more of what is on its way than the first.
  const auto fetch = [&](size_t i) { __builtin_prefetch(tensor.data() + placeOf(i), 0, 2); };
  for (size_t i = 0; i < std::min(kAhead, positions.size()); ++i) fetch(i);
  const std::byte* value = block.values;
  size_t i = 0;
  for (; i < positions.size(); ++i, value += sizeof(T)) {
    fetch(std::min(i + kAhead, positions.size() - 1));
    const uint64_t at = placeOf(i), word = at / kWord;
    if (word >= whole) break;
    T bits;
    std::memcpy(&bits, value, sizeof bits);
    uint64_t before;
    std::memcpy(&before, tensor.data() + word * kWord, kWord);
    const uint64_t shift = 8 * (at % kWord), mask = uint64_t{static_cast<T>(~T{0})} << shift;
    const uint64_t after = (before & ~mask) | uint64_t{bits} << shift;
    std::memcpy(tensor.data() + word * kWord, &after, kWord);
    changes.add(word, before, after);
  }
  for (; i < positions.size(); ++i, value += sizeof(T)) {
    overwriteRun(tensor, placeOf(i), {value, sizeof(T)}, sum, changes);
  }
}

void overwriteBlock(std::span<std::byte> tensor, const PatchBlock& block, uint32_t elementBytes,
                    ContentSum& sum, ContentSumChanges& changes) {
  if (block.runs) {
    block.forEachRun(elementBytes, [&](uint32_t begin, uint32_t end, const std::byte* values) {
      overwriteRun(tensor, (block.firstElement() + begin) * elementBytes,
                   {values, uint64_t{end - begin} * elementBytes}, sum, changes);
    });
    return;
  }
  switch (elementBytes) {
    case 1: return overwriteElements<uint8_t>(tensor, block, sum, changes);
    case 2: return overwriteElements<uint16_t>(tensor, block, sum, changes);
    case 4: return overwriteElements<uint32_t>(tensor, block, sum, changes);
    default: return overwriteElements<uint64_t>(tensor, block, sum, changes);
  }
}

/// `before` and `after`: the same bytes of the tensor from word `firstWord` on. `positions`: of the changed
/// elements, from element `first` of these bytes on.
void noteChanges(std::span<const std::byte> before, std::span<const std::byte> after, uint64_t firstWord,
                 uint64_t first, std::span<const uint16_t> positions, uint32_t elementBytes,
                 ContentSumChanges& changes) {
  uint64_t last = UINT64_MAX;
  for (const uint16_t position : positions) {
    const uint64_t word = (first + position) * elementBytes / kWord;
    if (word == last) continue;
    changes.add(firstWord + word, contentWord(before, word), contentWord(after, word));
    last = word;
  }
}

/// The changed elements of one block with values for all of its elements. Owned by one thread.
class UnfoldedBlock {
 public:
  explicit UnfoldedBlock(uint32_t elementBytes)
      : elementBytes_(elementBytes), values_(kPatchBlockElements * elementBytes) {}

  void clear(uint32_t elements) { std::fill_n(changed_.data(), (elements + 63) / 64, 0); }

  void add(const PatchBlock& block) {
    if (block.runs) {
      block.forEachRun(elementBytes_, [&](uint32_t begin, uint32_t end, const std::byte* from) {
        std::memcpy(values_.data() + uint64_t{begin} * elementBytes_, from,
                    uint64_t{end - begin} * elementBytes_);
        markRun(begin, end);
      });
      return;
    }
    switch (elementBytes_) {
      case 1: return addElements<uint8_t>(block);
      case 2: return addElements<uint16_t>(block);
      case 4: return addElements<uint32_t>(block);
      default: return addElements<uint64_t>(block);
    }
  }

  const ChangedBits& changed() const { return changed_; }
  const std::byte* values() const { return values_.data(); }

 private:
  template <class T>
  void addElements(const PatchBlock& block) {
    const std::byte* from = block.values;
    for (const uint16_t position : block.positions) {
      std::memcpy(values_.data() + position * sizeof(T), from, sizeof(T));
      changed_[position / 64] |= uint64_t{1} << position % 64;
      from += sizeof(T);
    }
  }

  void markRun(uint32_t begin, uint32_t end) {
    for (uint32_t word = begin / 64; word * 64 < end; ++word) {
      uint64_t bits = ~uint64_t{0};
      if (word == begin / 64) bits <<= begin % 64;
      if (end - word * 64 < 64) bits &= (uint64_t{1} << (end - word * 64)) - 1;
      changed_[word] |= bits;
    }
  }

  const uint32_t elementBytes_;
  ChangedBits changed_;
  std::vector<std::byte> values_;
};

Status mergeOverwrites(const TensorPatch& first, const TensorPatch& second, const PatchedTensor& tensor,
                       std::vector<std::byte>& out) {
  PSD_RETURN_IF_ERROR(checkShape(tensor));
  if (first.bytes.empty() || second.bytes.empty()) return noBlocks();
  const uint64_t elements = tensor.bytes / tensor.elementBytes;
  PatchBlockReader left(first.bytes, elements, tensor.elementBytes),
      right(second.bytes, elements, tensor.elementBytes);
  PatchBlockWriter writer(tensor.elementBytes);
  UnfoldedBlock both(tensor.elementBytes);
  PSD_ASSIGN_OR_RETURN(const PatchBlock* a, left.next());
  PSD_ASSIGN_OR_RETURN(const PatchBlock* b, right.next());
  while (a != nullptr || b != nullptr) {
    const bool takeLeft = b == nullptr || (a != nullptr && a->index <= b->index);
    const bool takeRight = a == nullptr || (b != nullptr && b->index <= a->index);
    if (takeLeft && takeRight) {
      both.clear(a->elements);
      both.add(*a);
      both.add(*b);
      writer.append(a->index, a->elements, both.changed(), both.values(), out);
    } else {
      const PatchBlock& block = takeLeft ? *a : *b;
      out.insert(out.end(), block.bytes.begin(), block.bytes.end());
    }
    if (takeLeft) {
      PSD_ASSIGN_OR_RETURN(a, left.next());
    }
    if (takeRight) {
      PSD_ASSIGN_OR_RETURN(b, right.next());
    }
  }
  return {};
}

}  // namespace

TensorReader readerOf(std::span<const std::byte> tensor) {
  return [tensor](uint64_t at, uint64_t count) -> Result<std::span<const std::byte>> {
    return tensor.subspan(at, count);
  };
}

Result<PatchKind> encodeTensorPatch(const TensorReader& before, std::span<const std::byte> after,
                                    uint32_t elementBytes, ContentSum& sum, std::vector<std::byte>& out) {
  const size_t begin = out.size();
  const auto takeWhole = [&] {
    out.resize(begin);
    out.insert(out.end(), after.begin(), after.end());
    sum = contentSum(after);
    return PatchKind::whole;
  };
  const bool isElements = after.size() % elementBytes == 0;
  PatchBlockWriter writer(elementBytes);
  ContentSumChanges changes;
  ChangedBits changed;
  for (uint64_t at = 0; at < after.size(); at += kPieceBytes) {
    const std::span<const std::byte> next = after.subspan(at, std::min(kPieceBytes, after.size() - at));
    PSD_ASSIGN_OR_RETURN(const std::span<const std::byte> old, before(at, next.size()));
    if (!isElements) {
      if (!std::ranges::equal(old, next)) return takeWhole();
      continue;
    }
    const uint64_t elements = next.size() / elementBytes, index = at / elementBytes / kPatchBlockElements;
    for (uint64_t first = 0; first < elements; first += kPatchBlockElements) {
      const auto count = static_cast<uint32_t>(std::min(kPatchBlockElements, elements - first));
      const std::byte* const values = next.data() + first * elementBytes;
      changedBits(old.data() + first * elementBytes, values, count, elementBytes, changed.data());
      const std::span<const uint16_t> positions = writer.append(
          static_cast<uint32_t>(index + first / kPatchBlockElements), count, changed, values, out);
      noteChanges(old, next, at / kWord, first, positions, elementBytes, changes);
      if (out.size() - begin >= after.size()) return takeWhole();
    }
  }
  sum += changes.total();
  return out.size() == begin ? PatchKind::same : PatchKind::overwrite;
}

Status checkTensorPatch(const TensorPatch& patch, const PatchedTensor& tensor) {
  switch (patch.kind) {
    case PatchKind::same: return patch.bytes.empty() ? Status() : damaged("an unchanged tensor has a patch");
    case PatchKind::whole:
      return patch.bytes.size() == tensor.bytes ? Status() : damaged("a whole tensor has another size");
    case PatchKind::overwrite: break;
    default: return damaged("a tensor has an unknown kind of patch");
  }
  PSD_RETURN_IF_ERROR(checkShape(tensor));
  if (patch.bytes.empty()) return noBlocks();
  PatchBlockReader blocks(patch.bytes, tensor.bytes / tensor.elementBytes, tensor.elementBytes);
  while (true) {
    PSD_ASSIGN_OR_RETURN(const PatchBlock* const block, blocks.next());
    if (block == nullptr) return {};
  }
}

Status applyTensorPatch(const TensorPatch& patch, uint32_t elementBytes, std::span<std::byte> tensor,
                        ContentSum& sum) {
  if (patch.kind != PatchKind::overwrite) {
    PSD_RETURN_IF_ERROR(checkTensorPatch(patch, {tensor.size(), elementBytes}));
    if (patch.kind == PatchKind::same) return {};
    std::ranges::copy(patch.bytes, tensor.begin());
    sum = contentSum(tensor);
    return {};
  }
  PSD_RETURN_IF_ERROR(checkShape({tensor.size(), elementBytes}));
  if (patch.bytes.empty()) return noBlocks();
  PatchBlockReader blocks(patch.bytes, tensor.size() / elementBytes, elementBytes);
  ContentSumChanges changes;
  while (true) {
    PSD_ASSIGN_OR_RETURN(const PatchBlock* const block, blocks.next());
    if (block == nullptr) break;
    overwriteBlock(tensor, *block, elementBytes, sum, changes);
  }
  sum += changes.total();
  return {};
}

Result<PatchKind> mergeTensorPatches(const TensorPatch& first, const TensorPatch& second,
                                     const PatchedTensor& tensor, std::vector<std::byte>& out) {
  if (first.kind == PatchKind::overwrite && second.kind == PatchKind::overwrite) {
    PSD_RETURN_IF_ERROR(mergeOverwrites(first, second, tensor, out));
    return PatchKind::overwrite;
  }
  PSD_RETURN_IF_ERROR(checkTensorPatch(first, tensor));
  PSD_RETURN_IF_ERROR(checkTensorPatch(second, tensor));
  const bool takesSecond = first.kind == PatchKind::same || second.kind == PatchKind::whole;
  const TensorPatch& one = takesSecond ? second : first;
  const size_t begin = out.size();
  out.insert(out.end(), one.bytes.begin(), one.bytes.end());
  if (takesSecond || second.kind == PatchKind::same) return one.kind;
  // Changes of a tensor that travels whole.
  ContentSum unused;
  PSD_RETURN_IF_ERROR(applyTensorPatch(second, tensor.elementBytes, std::span(out).subspan(begin), unused));
  return PatchKind::whole;
}

}  // namespace psd

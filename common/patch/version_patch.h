#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/patch/content_sum.h"
#include "common/patch/tensor_patch.h"
#include "common/safetensors/published_version.h"
#include "common/status/status.h"

namespace psd {

/// Takes the bytes of a patch in order, in pieces of any size.
using PatchSink = std::function<Status(std::span<const std::byte>)>;

/// A sink that appends to `out`, which outlives it.
PatchSink appendingTo(std::vector<std::byte>& out);

/// The sum of each tensor of a version's file, in the order of their data.
Result<std::vector<ContentSum>> contentSums(std::span<const std::byte> file);

/// Whether there can be a patch from one version to the other: they are of the same history, and have tensors
/// of the same names and shapes at the same places. ErrorCode::modelMismatch says what differs.
Status checkPatchable(const VersionHeader& base, const VersionHeader& next);

/// How patches see a tensor.
PatchedTensor patchedTensor(const SafetensorsEntry& tensor);

/// The changes of one tensor between two versions.
struct VersionTensorPatch {
  TensorPatch patch;
  ContentSum before, after;  ///< of the tensor in the two versions
};

/// The patch of a tensor from what `before` reads to `after`. `sum`: that of the tensor before, which becomes
/// that of `after`. `bytes` holds the patch. An Error is that of `before`.
Result<VersionTensorPatch> makeTensorPatch(const SafetensorsEntry& tensor, const TensorReader& before,
                                           std::span<const std::byte> after, ContentSum& sum,
                                           std::vector<std::byte>& bytes);

/// Writes a patch tensor by tensor; holds none of its bytes. docs/reference/protocol.md specifies them. Owned
/// by one thread.
class VersionPatchWriter {
 public:
  /// `from`: number of the version that the patch is applied to. `headerText`: of the version that it leads
  /// to, whose file has `fileBytes` bytes.
  static Result<VersionPatchWriter> start(uint64_t from, std::string_view headerText, uint64_t fileBytes,
                                          PatchSink sink);
  /// Writes the next tensor of the header.
  Status add(const VersionTensorPatch& tensor);
  /// Call after the last tensor.
  Status finish();

  const VersionHeader& header() const { return header_; }

 private:
  VersionPatchWriter(VersionHeader header, PatchSink sink)
      : header_(std::move(header)), sink_(std::move(sink)) {}
  Status write(std::span<const std::byte> bytes);

  VersionHeader header_;
  PatchSink sink_;
  size_t added_ = 0;
  uint32_t checksum_ = 0;
};

/// Writes the patch from the version in file `base` to the version in file `next`, with the memory of one
/// tensor's patch. `sums`: contentSums() of `base`, which become those of `next`. Reads both files once, from
/// their beginning. ErrorCode::modelMismatch says why there is no patch between the two.
Status makeVersionPatch(std::span<const std::byte> base, std::span<const std::byte> next,
                        std::span<ContentSum> sums, const PatchSink& sink);

/// What the first bytes of a patch say; nothing is verified. nullopt: they are not those of a patch.
struct PatchEnds {
  uint64_t history = 0, from = 0, to = 0;
};
inline constexpr uint64_t kPatchHeadBytes = 56;
std::optional<PatchEnds> peekPatch(std::span<const std::byte, kPatchHeadBytes> first);

/// A verified patch. Refers to the bytes that it was read from, which do not change. A value type.
class VersionPatch {
 public:
  /// Reads a patch from any bytes, and verifies their checksum and everything that apply() relies on, in
  /// memory of the size of the header. ErrorCode::io says what is damaged.
  static Result<VersionPatch> read(std::span<const std::byte> bytes);

  uint64_t from() const { return from_; }
  /// Of the version that the patch leads to.
  const VersionHeader& header() const { return header_; }
  std::string_view headerText() const { return headerText_; }
  /// In the order of header().tensors.
  std::span<const VersionTensorPatch> tensors() const { return tensors_; }

  /// Whether the patch applies to the version in this file: its number, history and table of tensors.
  /// ErrorCode::modelMismatch says what differs.
  Status checkBase(std::span<const std::byte> file) const;

  /// Changes the version in memory `file` to the next one, its header last: after an interruption the patch
  /// applies again. `sums`: contentSums() of the file, which are kept up to date in time of the changes. On
  /// an Error, those of checkBase(), nothing is changed. Returns the names of the tensors whose sums are not
  /// what the patch says; their bytes are to be fetched whole.
  Result<std::vector<std::string>> apply(std::span<std::byte> file, std::span<ContentSum> sums) const;

 private:
  VersionPatch() = default;
  uint64_t from_ = 0;
  VersionHeader header_;
  std::string_view headerText_;
  std::vector<VersionTensorPatch> tensors_;
};

/// Writes the patch with the effect of `patches`, at least one, of which each continues the one before. Holds
/// the patch of one tensor in memory. ErrorCode::modelMismatch says which of them do not fit.
Status mergeVersionPatches(std::span<const VersionPatch> patches, const PatchSink& sink);

}  // namespace psd

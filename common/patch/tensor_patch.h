#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/patch/content_sum.h"
#include "common/status/status.h"

namespace psd {

/// What the patch of a tensor has.
enum class PatchKind : uint32_t {
  same,       ///< no bytes: nothing changed
  overwrite,  ///< the changed elements, as blocks (patch_block.h)
  whole,      ///< all bytes of the tensor
};

/// The patch of one tensor from one version to another: a kind and bytes. Elements are compared as bits, and
/// values overwrite, so that a patch may be applied twice.
struct TensorPatch {
  PatchKind kind = PatchKind::same;
  std::span<const std::byte> bytes;
};

/// The shape of a tensor as patches see it.
struct PatchedTensor {
  uint64_t bytes = 0;
  uint32_t elementBytes = 1;  ///< 1, 2, 4 or 8
};

/// Returns `count` bytes of a tensor from `at` on, which stay valid until the next call.
using TensorReader = std::function<Result<std::span<const std::byte>>(uint64_t at, uint64_t count)>;

/// Reads a tensor in memory, which outlives the reader.
TensorReader readerOf(std::span<const std::byte> tensor);

/// Appends to `out` the bytes of the patch that changes a tensor of the same size, which `before` reads once
/// in pieces, to `after`, and returns its kind. `sum` is that of the tensor before, and becomes that of
/// `after`. The patch is never longer than the tensor. An Error is that of `before`.
Result<PatchKind> encodeTensorPatch(const TensorReader& before, std::span<const std::byte> after,
                                    uint32_t elementBytes, ContentSum& sum, std::vector<std::byte>& out);

/// Whether applyTensorPatch() would succeed; ErrorCode::io says what is damaged.
Status checkTensorPatch(const TensorPatch& patch, const PatchedTensor& tensor);

/// Applies a patch in place; `sum`, that of the tensor, is kept up to date in time of the changes alone.
/// Never writes outside the tensor; on an Error, which checkTensorPatch() finds first, a part is applied.
Status applyTensorPatch(const TensorPatch& patch, uint32_t elementBytes, std::span<std::byte> tensor,
                        ContentSum& sum);

/// Appends to `out` the bytes of the patch that has the effect of `first`, then `second`, and returns its
/// kind.
Result<PatchKind> mergeTensorPatches(const TensorPatch& first, const TensorPatch& second,
                                     const PatchedTensor& tensor, std::vector<std::byte>& out);

}  // namespace psd

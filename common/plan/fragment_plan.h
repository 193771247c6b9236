#pragma once

#include <cstdint>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// Divides a model's tensors into so many fragments of about the same size, at most one of each tensor, and
/// gives the fragment of each, so that none is empty. Tensors of a repeated block, as "layers.3.mlp.weight",
/// stay together, block after block in turn (Streaming DiLoCo's strided fragments); the others, and all where
/// there are fewer blocks than fragments, go one by one, the largest first, into the smallest. A pure
/// function.
std::vector<uint32_t> planFragments(const ModelSpec& model, uint32_t fragments);

/// The fragment of each tensor of a model that is whole, or of a partition of one: there that of the tensor
/// of the whole model which it is, or is rows of. So some fragments may have nothing in a partition.
/// ErrorCode::invalidArgument where a partition does not tell of the whole model, or is not of that.
Result<std::vector<uint32_t>> fragmentsOf(const ModelSpec& model, uint32_t fragments);

}  // namespace psd

#pragma once

#include <cstdint>
#include <vector>

#include "common/status/status.h"
#include "common/types/model_spec.h"

namespace psd {

/// Divides a model's tensors into `fragments` fragments of about the same size, at most one per tensor, none
/// empty, and returns the fragment of each tensor. Tensors of a repeated block, like "layers.3.mlp.weight",
/// stay together, and blocks are assigned round-robin (Streaming DiLoCo's strided fragments); the others, or
/// all if there are fewer blocks than fragments, are assigned largest first to the smallest fragment. A pure
/// function.
std::vector<uint32_t> planFragments(const ModelSpec& model, uint32_t fragments);

/// The fragment of each tensor of a whole model, or of a partition: there, that of the tensor of the whole
/// model which it is, or contains rows of. Some fragments may thus have nothing in a partition.
/// ErrorCode::invalidArgument if a partition does not carry the whole model's tensors, or does not match
/// them.
Result<std::vector<uint32_t>> fragmentsOf(const ModelSpec& model, uint32_t fragments);

}  // namespace psd

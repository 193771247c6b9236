#pragma once

#include <cstdint>
#include <vector>

#include "server/store/combination.h"

namespace psd {

/// Indices of the contributions of a round, n ≥ 2f + 3, in ascending order of their Krum score: the sum of
/// squared distances to the n − f − 2 nearest neighbors (Blanchard, El Mhamdi, Guerraoui, Stainer 2017).
/// Equal scores, which two mutual nearest neighbors may have, are ordered by index.
std::vector<size_t> orderByKrumScore(const SquaredDistances& distances, uint32_t byzantine);

}  // namespace psd

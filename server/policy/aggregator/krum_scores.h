#pragma once

#include <cstdint>
#include <vector>

#include "server/store/combination.h"

namespace psd {

/// The contributions of a round, n ≥ 2f + 3, those first that lie nearest to most others: by the sum of
/// squared distances to their n − f − 2 nearest others (Blanchard, El Mhamdi, Guerraoui, Stainer 2017). Of
/// equals, which two nearest neighbours may be, the one of the lower number comes first.
std::vector<size_t> orderByKrumScore(const SquaredDistances& distances, uint32_t byzantine);

}  // namespace psd

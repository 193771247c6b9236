#pragma once

#include <cstdint>
#include <vector>

#include "server/store/combination.h"

namespace psd {

/// The contributions of a round, n ≥ 2f + 3, in the order of their Krum scores: first the one that lies
/// nearest to most others, by the sum of squared distances to its n − f − 2 nearest others (Blanchard, El
/// Mhamdi, Guerraoui, Stainer 2017). Of equal scores, which two nearest neighbours may have, the lower number
/// comes first.
std::vector<size_t> orderByKrumScore(const SquaredDistances& distances, uint32_t byzantine);

}  // namespace psd

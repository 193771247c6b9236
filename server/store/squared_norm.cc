#include "server/store/squared_norm.h"

#include "common/codec/vectorised.h"

namespace psd {

double squaredNorm(std::span<const float> values) {
  constexpr size_t kLanes = 16;
  double parts[kLanes] = {};
  const float* const v = values.data();
  const size_t whole = values.size() / kLanes * kLanes;
  vectorised([=, &parts]() PSD_VECTORISED {
    for (size_t i = 0; i < whole; i += kLanes) {
      for (size_t lane = 0; lane < kLanes; ++lane) {
        const double value = v[i + lane];
        parts[lane] += value * value;
      }
    }
  });
  double sum = 0;
  for (size_t i = whole; i < values.size(); ++i) sum += double{v[i]} * v[i];
  for (const double part : parts) sum += part;
  return sum;
}

}  // namespace psd

#pragma once

#include "server/optimizer/ftrl.h"

namespace psd {

/// The step of GroupFtrl. A row's weights derive from its slots z and n: shrunk() of each z, times a factor
/// of the row.
template <bool kRacing>
struct GroupFtrlStep : FtrlNumbers {
  static constexpr uint32_t kSlots = 2;
  static constexpr bool kRaces = kRacing;
  float groupL1;

  /// The factor of a row of `dim` values whose squares of shrunk() sum up to `squares`.
  PSD_HOST_DEVICE float factor(float squares, uint32_t dim) const {
    const float limit = groupL1 * sqrtf(static_cast<float>(dim));
    if (limit == 0) return 1;
    const float norm = sqrtf(squares);
    return norm > limit ? 1 - limit / norm : 0.f;
  }
  PSD_HOST_DEVICE float weight(float z, float n, float factor) const {
    return factor * shrunk(z) / divisor(n);
  }
  /// The factor of a row whose weights times their divisors have squares that sum up to `squares`.
  PSD_HOST_DEVICE float factorOfWeights(float squares, uint32_t dim) const {
    const float limit = groupL1 * sqrtf(static_cast<float>(dim));
    const float norm = sqrtf(squares);
    return norm > 0 ? norm / (norm + limit) : 1.f;
  }
  /// The z with which a weight is `w`, up to rounding.
  PSD_HOST_DEVICE float z(float w, float n, float factor) const { return unshrunk(w * divisor(n) / factor); }
};

/// FTRL-Proximal with a group lasso of each row of a table (Ni et al. 2019): a row whose z are small together
/// is 0 as a whole. A value type.
struct GroupFtrl : FtrlBase {
  static constexpr std::string_view kName = "group_ftrl";
  static constexpr std::string_view kSummary =
      "FTRL-Proximal that also sets whole rows to 0, for groups of embedding tables only.";
  static constexpr std::string_view kForTensors = "ftrl";
  using RowStep = GroupFtrlStep<false>;

  double groupL1 = 0;

  template <class Options>
  void visitOptions(Options& options) {
    FtrlBase::visitOptions(options);
    options.number({"group_l1",
                    "A row of d values is 0 as a whole while the norm of its z, each lowered by `l1`, is at "
                    "most this times √d."},
                   groupL1);
  }

  template <class Visitor>
  void visitRowStep(const UpdateScalars& update, Visitor&& visitor) const {
    const FtrlNumbers numbers = numbersAt(update.learningRate);
    const auto group = static_cast<float>(groupL1);
    update.races ? visitor(GroupFtrlStep<true>{numbers, group})
                 : visitor(GroupFtrlStep<false>{numbers, group});
  }
};

}  // namespace psd

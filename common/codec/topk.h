#pragma once

#include "common/codec/sparse.h"

namespace psd {

/// The largest magnitudes of each slice (Aji, Heafield 2017; Stich, Cordonnier, Jaggi 2018). Bytes: sparse.h.
/// Immutable.
class TopK final : public SparseCodec {
 public:
  static constexpr std::string_view kName = "topk", kSummary = "the largest values and their places";
  explicit TopK(CodecOptions& options) : SparseCodec(options.fraction()) {}

  std::string_view name() const override { return kName; }
};

}  // namespace psd

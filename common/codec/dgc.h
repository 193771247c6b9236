#pragma once

#include <algorithm>
#include <array>

#include "common/codec/sparse.h"

namespace psd {

/// Deep Gradient Compression (Lin, Han, Mao, Wang, Dally 2018): topk of an accumulated velocity. With u the
/// velocity and v the residual: u = momentum·u + gradient (momentum correction), v += u, the largest of v are
/// sent, and u and v become zero at their places (momentum factor masking). The trainer applies the momentum,
/// so the daemon's optimizer must have none. Bytes: sparse.h. Immutable.
class Dgc final : public SparseCodec {
 public:
  static constexpr std::string_view kName = "dgc", kSummary = "topk with the momentum on the trainer's side";
  explicit Dgc(CodecOptions& options)
      : SparseCodec(options.fraction()),
        momentum_(static_cast<float>(options.number("momentum", 0.9, 0, 0.9999))) {}

  std::string_view name() const override { return kName; }
  uint32_t memorySlots() const override { return 2; }
  bool addsMomentum() const override { return momentum_ > 0; }

  void accumulate(std::span<const float> gradient, CodecMemory memory) const override {
    float* const u = memory.velocity.data();
    float* const v = memory.residual.data();
    vectorised([=, momentum = momentum_]() PSD_VECTORISED {
      for (size_t i = 0; i < gradient.size(); ++i) {
        u[i] = momentum * u[i] + gradient[i];
        v[i] += u[i];
      }
    });
  }

  void settle(Bytes bytes, CodecMemory memory) const override {
    std::array<uint32_t, kCodecBlock> places;
    std::array<float, kCodecBlock> values;
    const uint64_t count = memory.residual.size(), sent = *entryCount(bytes, count);
    for (uint64_t first = 0; first < sent; first += places.size()) {
      const uint64_t some = std::min<uint64_t>(places.size(), sent - first);
      entries(bytes, count, first, std::span(places).first(some), std::span(values).first(some));
      for (uint64_t i = 0; i < some; ++i) memory.velocity[places[i]] = memory.residual[places[i]] = 0;
    }
  }

 private:
  const float momentum_;
};

}  // namespace psd

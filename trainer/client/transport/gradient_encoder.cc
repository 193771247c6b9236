#include "trainer/client/transport/gradient_encoder.h"

#include <algorithm>
#include <mutex>

#include "common/types/finite.h"

namespace psd {
namespace {

constexpr uint64_t kReadablePastEnd = 8;

}  // namespace

/// Reusable memory for encoded slices; may be returned on any thread, also after the encoder was destroyed.
struct GradientEncoder::Buffers {
  using Buffer = std::vector<uint64_t>;  // 8-byte aligned
  std::mutex mutex;
  std::vector<std::unique_ptr<Buffer>> idle;  // guarded by mutex

  static std::shared_ptr<Buffer> take(const std::shared_ptr<Buffers>& self, uint64_t bytes) {
    std::unique_ptr<Buffer> buffer;
    {
      const std::lock_guard lock(self->mutex);
      if (!self->idle.empty()) {
        buffer = std::move(self->idle.back());
        self->idle.pop_back();
      }
    }
    if (!buffer) buffer = std::make_unique<Buffer>();
    const uint64_t words = (bytes + kReadablePastEnd + 7) / 8;
    if (buffer->size() < words) buffer->resize(words);
    return {buffer.release(), [self](Buffer* used) {
              const std::lock_guard lock(self->mutex);
              self->idle.emplace_back(used);
            }};
  }
};

GradientEncoder::GradientEncoder(std::shared_ptr<const Codec> codec, uint64_t seed)
    : codec_(std::move(codec)), seed_(seed), buffers_(std::make_shared<Buffers>()) {}

GradientEncoder::Memory& GradientEncoder::memoryOf(uint64_t begin, uint64_t count) {
  const auto [entry, isNew] = memory_.try_emplace(begin);
  if (isNew && codec_->memorySlots() > 0) entry->second.residual.resize(count);
  if (isNew && codec_->memorySlots() > 1) entry->second.velocity.resize(count);
  return entry->second;
}

Result<GradientEncoder::Encoded> GradientEncoder::encode(Step step, uint64_t begin,
                                                         std::span<const float> gradient) {
  Memory& kept = memoryOf(begin, gradient.size());
  const CodecMemory memory{kept.residual, kept.velocity};
  if (!allFinite(gradient)) return Error{ErrorCode::nonFinite, "a gradient holds NaN or infinity"};
  std::span<const float> values = gradient;
  if (!memory.residual.empty()) {
    if (kept.accumulated != step) codec_->accumulate(gradient, memory);
    kept.accumulated = step;
    values = memory.residual;
  }
  const uint64_t bytes = codec_->encodedBytes(values.size());
  const auto buffer = Buffers::take(buffers_, bytes);
  auto* const out = reinterpret_cast<std::byte*>(buffer->data());
  const uint64_t seed = seed_ ^ (step.value * 0x9e3779b97f4a7c15u) ^ (begin << 20);
  Status status = codec_->encode(values, seed, out);
  if (status.ok() && !allFinite(values)) status = {ErrorCode::nonFinite, "the sum of gradients is infinite"};
  if (!status.ok()) {
    // Reset: a residual that cannot be sent would fail every later push.
    std::fill(memory.residual.begin(), memory.residual.end(), 0.f);
    std::fill(memory.velocity.begin(), memory.velocity.end(), 0.f);
    return status.error();
  }
  const Codec::Bytes encoded(out, bytes);
  if (!memory.residual.empty()) codec_->settle(encoded, memory);
  return Encoded{buffer, encoded};
}

void GradientEncoder::restoreResidual(uint64_t begin, uint64_t count, Codec::Bytes bytes) {
  if (codec_->memorySlots() == 0) return;
  Memory& kept = memoryOf(begin, count);
  codec_->restoreResidual(bytes, {kept.residual, kept.velocity});
}

void GradientEncoder::undoRestoreResidual(uint64_t begin, uint64_t count, Codec::Bytes bytes) {
  if (codec_->memorySlots() == 0) return;
  Memory& kept = memoryOf(begin, count);
  codec_->undoRestoreResidual(bytes, {kept.residual, kept.velocity});
}

}  // namespace psd

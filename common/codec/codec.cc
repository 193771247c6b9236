#include "common/codec/codec.h"

#include <algorithm>
#include <array>

#include "common/codec/codec_list.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kBufferElements = 4096;  // 16 KiB: fits into the L1 cache

/// One instance of each codec, with default options. Never destroyed: threads may decode during exit.
const std::vector<std::shared_ptr<const Codec>>& decoders() {
  static const auto* const all = [] {
    auto* const made = new std::vector<std::shared_ptr<const Codec>>;
    for (const CodecEntry& entry : kCodecList) made->push_back(makeCodec(entry.name).value());
    return made;
  }();
  return *all;
}

}  // namespace

void Codec::accumulate(std::span<const float> gradient, CodecMemory memory) const {
  float* const residual = memory.residual.data();
  vectorised([=]() PSD_VECTORISED {
    for (size_t i = 0; i < gradient.size(); ++i) residual[i] += gradient[i];
  });
}

void Codec::addDecoded(Bytes bytes, std::span<float> to, float factor) const {
  std::array<float, kBufferElements> buffer;
  for (uint64_t begin = 0; begin < to.size(); begin += buffer.size()) {
    const uint64_t some = std::min<uint64_t>(buffer.size(), to.size() - begin);
    decode(bytes, to.size(), begin, std::span(buffer).first(some));
    float* const out = to.data() + begin;
    vectorised([=, in = buffer.data()]() PSD_VECTORISED {
      for (uint64_t i = 0; i < some; ++i) out[i] += factor * in[i];
    });
  }
}

void Codec::settle(Bytes bytes, CodecMemory memory) const { addDecoded(bytes, memory.residual, -1); }
void Codec::restoreResidual(Bytes bytes, CodecMemory memory) const { addDecoded(bytes, memory.residual, 1); }
void Codec::undoRestoreResidual(Bytes bytes, CodecMemory memory) const {
  addDecoded(bytes, memory.residual, -1);
}

Result<std::shared_ptr<const Codec>> makeCodec(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  for (const CodecEntry& entry : kCodecList) {
    if (entry.name != name) continue;
    if (colon != std::string_view::npos && (spec.ends_with(':') || spec.ends_with(','))) {
      return Error{ErrorCode::invalidArgument, "codec '" + std::string(name) + "': '" + printable(spec, 100) +
                                                   "' lacks an option NAME=VALUE at its end"};
    }
    CodecOptions options(entry.name, colon == std::string_view::npos ? "" : spec.substr(colon + 1));
    std::shared_ptr<Codec> codec = entry.make(options);
    PSD_RETURN_IF_ERROR(options.finish());
    codec->spec_ = options.spec();
    return std::shared_ptr<const Codec>(std::move(codec));
  }
  const std::string_view near = nearest(name, codecNames());
  return Error{ErrorCode::invalidArgument, "'" + printable(name, 100) + "' is not a codec; " +
                                               (near.empty() ? "expected " + joined(codecNames(), ", ")
                                                             : "did you mean '" + std::string(near) + "'?")};
}

const Codec* findDecoder(std::string_view name) {
  for (const auto& codec : decoders()) {
    if (codec->name() == name) return codec.get();
  }
  return nullptr;
}

const Codec* codecOf(DType dtype) {
  switch (dtype) {
    case DType::bf16: return findDecoder(Bf16::kName);
    case DType::f16: return findDecoder(Fp16::kName);
    default: return nullptr;
  }
}

std::vector<std::string_view> codecNames() {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : kCodecList) names.push_back(entry.name);
  return names;
}

std::vector<std::string_view> parameterCodecNames() {
  std::vector<std::string_view> names;
  for (const auto& codec : decoders()) {
    if (codec->suitsParameters()) names.push_back(codec->name());
  }
  return names;
}

std::string codecHelp() {
  return joined(kCodecList, "; ", [](const CodecEntry& entry) {
    return std::string(entry.name) + ": " + std::string(entry.summary);
  });
}

}  // namespace psd

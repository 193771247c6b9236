#include "common/codec/codec.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "common/codec/codec_list.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kBufferElements = 4096;  // 16 KiB: stays in the first-level cache

/// One of each codec, with the default options. Never destroyed: threads may decode while the program ends.
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
void Codec::takeBack(Bytes bytes, CodecMemory memory) const { addDecoded(bytes, memory.residual, 1); }
void Codec::undoTakeBack(Bytes bytes, CodecMemory memory) const { addDecoded(bytes, memory.residual, -1); }

CodecOptions::CodecOptions(std::string_view codec, std::string_view text) : codec_(codec), spec_(codec) {
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      problem("'" + printable(item) + "' is no option; expected NAME=VALUE");
      continue;
    }
    given_.push_back({item.substr(0, equals), item.substr(equals + 1)});
  }
}

void CodecOptions::problem(std::string message) {
  if (problem_.empty()) problem_ = std::move(message);
}

double CodecOptions::number(std::string_view key, double fallback, double min, double max) {
  known_.push_back(key);
  double value = fallback;
  for (Option& option : given_) {
    if (option.key != key) continue;
    if (option.read) problem(std::string(key) + " is given twice");
    option.read = true;
    const char* const end = option.value.data() + option.value.size();
    const auto [stop, error] = std::from_chars(option.value.data(), end, value);
    if (error != std::errc() || stop != end || !(value >= min && value <= max)) {
      problem(fmt::format("{} must be a number from {} to {}, not '{}'", key, min, max, option.value));
      value = fallback;
    }
    break;
  }
  spec_ += fmt::format("{}{}={}", known_.size() == 1 ? ":" : ",", key, value);
  return value;
}

Status CodecOptions::finish() const {
  std::string message = problem_;
  for (const Option& option : given_) {
    if (!message.empty() || option.read) continue;
    message = "'" + printable(option.key) + "' is no option of it" +
              (known_.empty() ? "; it has none" : "; expected " + joined(known_, ", "));
    if (std::count(known_.begin(), known_.end(), option.key) > 0) {
      message = std::string(option.key) + " is given twice";
    }
  }
  if (message.empty()) return {};
  return {ErrorCode::invalidArgument, "codec '" + std::string(codec_) + "': " + message};
}

Result<std::shared_ptr<const Codec>> makeCodec(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string_view name = spec.substr(0, colon);
  for (const CodecEntry& entry : kCodecList) {
    if (entry.name != name) continue;
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

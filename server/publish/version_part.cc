#include "server/publish/version_part.h"

#include <functional>
#include <numeric>

#include <spdlog/fmt/fmt.h>

#include "common/safetensors/published_version.h"
#include "common/text/text.h"
#include "common/types/model_spec.h"

namespace psd {
namespace {

uint64_t productOf(const std::vector<uint64_t>& sizes, uint64_t unit) {
  return std::accumulate(sizes.begin(), sizes.end(), unit, std::multiplies<>());
}

}  // namespace

uint64_t VersionPart::bytes() const { return productOf(extent, safetensorsElementBytes(dtype)); }
uint64_t VersionPart::tensorBytes() const { return productOf(shape, safetensorsElementBytes(dtype)); }

std::string VersionPart::boxText() const {
  std::string text;
  for (size_t i = 0; i < offset.size(); i++) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ", ", offset[i], offset[i] + extent[i]);
  }
  return "[" + text + "]";
}

Status checkPart(const VersionPart& part) {
  PSD_RETURN_IF_ERROR(validateTensorName(part.name));
  const auto bad = [&](const std::string& why) {
    return Status(ErrorCode::invalidArgument, "tensor '" + part.name + "' " + why);
  };
  if (!isVersionDtype(part.dtype)) {
    return bad("has dtype '" + printable(part.dtype, 20) + "'; expected one of " +
               joined(kVersionDtypes, ", "));
  }
  if (part.shape.size() > kPartDimsMax) {
    return bad(fmt::format("has {} dimensions; the limit is {}", part.shape.size(), kPartDimsMax));
  }
  if (part.offset.size() != part.shape.size() || part.extent.size() != part.shape.size()) {
    return bad(fmt::format("has {} dimensions, and the offset of its part {} and the extent {}",
                           part.shape.size(), part.offset.size(), part.extent.size()));
  }
  uint64_t bytes = safetensorsElementBytes(part.dtype);
  for (size_t i = 0; i < part.shape.size(); i++) {
    if (part.offset[i] > part.shape[i] || part.extent[i] > part.shape[i] - part.offset[i]) {
      return bad(fmt::format("has {} elements in dimension {}; its part is {} of them from {} on",
                             part.shape[i], i, part.extent[i], part.offset[i]));
    }
    const uint64_t factor = std::max<uint64_t>(part.shape[i], 1);
    if (factor > kPartTensorBytesMax / bytes) {
      return bad(fmt::format("has more than {} bytes", kPartTensorBytesMax));
    }
    bytes *= factor;
  }
  return {};
}

BoxRuns::BoxRuns(const VersionPart& part) {
  const size_t dims = part.shape.size();
  uint64_t stride = safetensorsElementBytes(part.dtype);
  // The last dimensions that the box has whole, and one more, are contiguous.
  size_t inner = dims;
  while (inner > 0 && part.extent[inner - 1] == part.shape[inner - 1]) stride *= part.shape[--inner];
  runBytes_ = stride;
  if (inner > 0) {
    inner--;
    runBytes_ = stride * part.extent[inner];
    begin_ = stride * part.offset[inner];
    stride *= part.shape[inner];
  }
  outer_.resize(inner);
  for (size_t i = inner; i-- > 0;) {
    outer_[i] = {part.extent[i], stride};
    begin_ += stride * part.offset[i];
    stride *= part.shape[i];
  }
  stride_ = outer_.empty() ? 0 : outer_.back().stride;
}

uint64_t BoxRuns::placeOf(uint64_t run) const {
  uint64_t place = begin_;
  for (size_t i = outer_.size(); i-- > 0;) {
    place += run % outer_[i].extent * outer_[i].stride;
    run /= outer_[i].extent;
  }
  return place;
}

}  // namespace psd

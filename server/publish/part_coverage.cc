#include "server/publish/part_coverage.h"

#include <algorithm>
#include <set>
#include <tuple>

#include <spdlog/fmt/fmt.h>

#include "common/safetensors/safetensors.h"

namespace psd {
namespace {

constexpr uint64_t kGapLooksMax = 1u << 24;  // at one box each, while the first missing element is searched

Error notCovered(std::string why) { return {ErrorCode::invalidArgument, std::move(why)}; }

bool overlap(const VersionPart& a, const VersionPart& b) {
  for (size_t i = 0; i < a.shape.size(); i++) {
    if (a.offset[i] >= b.offset[i] + b.extent[i] || b.offset[i] >= a.offset[i] + a.extent[i]) return false;
  }
  return true;
}

/// The elements that both boxes have.
std::string sharedText(const VersionPart& a, const VersionPart& b) {
  VersionPart both = a;
  for (size_t i = 0; i < a.shape.size(); i++) {
    both.offset[i] = std::max(a.offset[i], b.offset[i]);
    both.extent[i] = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]) - both.offset[i];
  }
  return both.boxText();
}

std::string giversText(const GivenPart& a, const GivenPart& b) {
  const auto [low, high] = std::minmax(a.rank, b.rank);
  return low == high ? fmt::format("rank {} gives", low)
                     : fmt::format("rank {} and rank {} both give", low, high);
}

/// The dimension in which the boxes begin at the most places.
size_t widestDimension(const std::vector<GivenPart>& given) {
  size_t widest = 0, most = 0;
  for (size_t i = 0; i < given.front().part->shape.size(); i++) {
    std::set<uint64_t> begins;
    for (const GivenPart& each : given) begins.insert(each.part->offset[i]);
    if (begins.size() > most) std::tie(widest, most) = std::pair(i, begins.size());
  }
  return widest;
}

/// A sweep along one dimension: compares each box with those that have not ended before it.
Status checkDisjoint(std::vector<GivenPart> given) {
  if (given.empty() || given.front().part->shape.empty()) return {};
  const size_t along = widestDimension(given);
  std::ranges::sort(given, {}, [along](const GivenPart& each) { return each.part->offset[along]; });
  std::vector<const GivenPart*> open;
  for (const GivenPart& each : given) {
    const uint64_t begin = each.part->offset[along];
    std::erase_if(open, [&](const GivenPart* other) {
      return other->part->offset[along] + other->part->extent[along] <= begin;
    });
    for (const GivenPart* other : open) {
      if (!overlap(*each.part, *other->part)) continue;
      return notCovered(fmt::format("tensor '{}': {} elements {}{}", each.part->name,
                                    giversText(*other, each), sharedText(*other->part, *each.part),
                                    other->rank == each.rank ? " twice" : ""));
    }
    open.push_back(&each);
  }
  return {};
}

bool contains(const VersionPart& box, const std::vector<uint64_t>& element) {
  for (size_t i = 0; i < element.size(); i++) {
    if (element[i] < box.offset[i] || element[i] - box.offset[i] >= box.extent[i]) return false;
  }
  return true;
}

/// The first element that is in no box: each of its indices is 0 or the end of some box. Empty if the search
/// takes too long.
std::vector<uint64_t> firstMissing(const std::vector<GivenPart>& given, const std::vector<uint64_t>& shape) {
  std::vector<std::vector<uint64_t>> candidates(shape.size());
  for (size_t i = 0; i < shape.size(); i++) {
    std::set<uint64_t> places = {0};
    for (const GivenPart& each : given) places.insert(each.part->offset[i] + each.part->extent[i]);
    places.erase(shape[i]);
    candidates[i].assign(places.begin(), places.end());
  }
  std::vector<size_t> at(shape.size(), 0);
  std::vector<uint64_t> element(shape.size(), 0);
  for (uint64_t looks = 0; looks < kGapLooksMax; looks += given.size() + 1) {
    const bool isGiven =
        std::ranges::any_of(given, [&](const GivenPart& each) { return contains(*each.part, element); });
    if (!isGiven) return element;
    size_t next = shape.size();
    while (next > 0 && ++at[next - 1] == candidates[next - 1].size()) {
      at[--next] = 0;
      element[next] = 0;
    }
    if (next == 0) break;
    element[next - 1] = candidates[next - 1][at[next - 1]];
  }
  return {};
}

Error missingError(const std::vector<GivenPart>& given, const VersionPart& tensor, uint64_t missing) {
  const std::vector<uint64_t> first = firstMissing(given, tensor.shape);
  std::string place;
  for (const uint64_t index : first) place += fmt::format("{}{}", place.empty() ? "" : ", ", index);
  return notCovered(fmt::format("tensor '{}': {} of its elements {} given by no rank{}", tensor.name, missing,
                                missing == 1 ? "is" : "are",
                                place.empty() ? "" : ", the first at [" + place + "]"));
}

}  // namespace

Result<std::vector<GivenPart>> coverTensor(std::vector<GivenPart> given) {
  const VersionPart& tensor = *given.front().part;
  if (given.size() > kTensorPartsMax) {
    return Error{ErrorCode::overloaded, fmt::format("tensor '{}' is given in {} parts; the limit is {}",
                                                    tensor.name, given.size(), kTensorPartsMax)};
  }
  std::erase_if(given, [](const GivenPart& each) { return each.part->bytes() == 0; });
  std::ranges::stable_sort(given, [](const GivenPart& a, const GivenPart& b) {
    return std::tie(a.part->offset, a.part->extent) < std::tie(b.part->offset, b.part->extent);
  });
  std::vector<GivenPart> distinct;
  uint64_t missing = tensor.tensorBytes();
  for (const GivenPart& each : given) {
    if (distinct.empty() || !distinct.back().part->isSameBox(*each.part)) {
      distinct.push_back(each);
      continue;
    }
    if (distinct.back().part->checksum == each.part->checksum) continue;
    return notCovered(fmt::format("tensor '{}': {} elements {}{}, with different bytes", tensor.name,
                                  giversText(distinct.back(), each), each.part->boxText(),
                                  distinct.back().rank == each.rank ? " twice" : ""));
  }
  PSD_RETURN_IF_ERROR(checkDisjoint(distinct));
  for (const GivenPart& each : distinct) missing -= each.part->bytes();
  if (missing == 0) return distinct;
  return missingError(distinct, tensor, missing / safetensorsElementBytes(tensor.dtype));
}

}  // namespace psd

#include "server/publish/part_assembly.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "common/checksum/crc32c.h"
#include "test/support/catch.h"

namespace psd::part_assembly_test {
namespace {

using Bytes = std::vector<std::byte>;
using Sizes = std::vector<uint64_t>;
using Random = std::mt19937_64;

uint64_t between(Random& random, uint64_t least, uint64_t most) {
  return std::uniform_int_distribution<uint64_t>(least, most)(random);
}

/// A tensor and its bytes.
struct Tensor {
  std::string name, dtype;
  Sizes shape;
  Bytes bytes;
};

Bytes randomBytes(Random& random, uint64_t count) {
  Bytes bytes(count);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Tensor makeTensor(Random& random, std::string name, std::string dtype, Sizes shape) {
  uint64_t bytes = safetensorsElementBytes(dtype);
  for (const uint64_t size : shape) bytes *= size;
  return {std::move(name), std::move(dtype), std::move(shape), randomBytes(random, bytes)};
}

/// The bytes of a box, element by element.
Bytes cut(const Tensor& tensor, const Sizes& offset, const Sizes& extent) {
  const uint64_t element = safetensorsElementBytes(tensor.dtype);
  uint64_t count = 1;
  for (const uint64_t size : extent) count *= size;
  Bytes out;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t rest = i, place = 0, stride = 1;
    for (size_t d = extent.size(); d-- > 0;) {
      place += (offset[d] + rest % extent[d]) * stride;
      rest /= extent[d];
      stride *= tensor.shape[d];
    }
    out.insert(out.end(), tensor.bytes.begin() + static_cast<long>(place * element),
               tensor.bytes.begin() + static_cast<long>((place + 1) * element));
  }
  return out;
}

/// A part and its bytes.
struct Sent {
  VersionPart part;
  Bytes bytes;
};

Sent send(const Tensor& tensor, Sizes offset, Sizes extent) {
  Bytes bytes = cut(tensor, offset, extent);
  const uint32_t checksum = crc32c(bytes);
  return {{tensor.name, tensor.dtype, tensor.shape, std::move(offset), std::move(extent), checksum},
          std::move(bytes)};
}
Sent whole(const Tensor& tensor) { return send(tensor, Sizes(tensor.shape.size(), 0), tensor.shape); }

using Ranks = std::vector<std::vector<Sent>>;

Result<std::shared_ptr<PartAssembly>> plan(const Ranks& ranks) {
  std::vector<PartAssembly::Parts> parts;
  for (const auto& rank : ranks) {
    std::vector<VersionPart> of;
    for (const Sent& each : rank) {
      PSD_REQUIRE_OK(checkPart(each.part));
      of.push_back(each.part);
    }
    parts.push_back(std::make_shared<const std::vector<VersionPart>>(std::move(of)));
  }
  return PartAssembly::plan(std::move(parts));
}

/// What a rank sends, as one stream.
Bytes streamOf(const PartAssembly& assembly, const Ranks& ranks, uint32_t rank) {
  Bytes stream;
  for (const uint32_t index : assembly.sends(rank)) {
    const Bytes& bytes = ranks[rank][index].bytes;
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  return stream;
}

std::string refusal(const Ranks& ranks, ErrorCode code = ErrorCode::invalidArgument) {
  const auto planned = plan(ranks);
  REQUIRE_FALSE(planned.ok());
  CHECK(planned.error().code == code);
  return planned.message();
}

void checkHolds(const PartAssembly& assembly, const std::vector<Tensor>& tensors) {
  REQUIRE(assembly.isWhole());
  REQUIRE(assembly.tensors().size() == tensors.size());
  for (const Tensor& tensor : tensors) {
    const auto entry = std::ranges::find(assembly.tensors(), tensor.name, &SafetensorsEntry::name);
    REQUIRE(entry != assembly.tensors().end());
    CHECK(entry->dtype == tensor.dtype);
    CHECK(entry->shape == tensor.shape);
    REQUIRE(entry->end - entry->begin == tensor.bytes.size());
    CHECK(entry->begin % safetensorsElementBytes(tensor.dtype) == 0);
    CHECK(std::ranges::equal(assembly.values().subspan(entry->begin, tensor.bytes.size()), tensor.bytes));
  }
}

/// Divides a box into disjoint boxes, and adds one of each to some rank.
void divide(Random& random, const Tensor& tensor, Sizes offset, Sizes extent, Ranks& ranks, int depth) {
  const size_t along = extent.empty() ? 0 : between(random, 0, extent.size() - 1);
  if (depth == 0 || extent.empty() || extent[along] < 2) {
    const Sent sent = send(tensor, offset, extent);
    const uint64_t copies = between(random, 1, 5) == 1 ? 2 : 1;  // sometimes a replica
    for (uint64_t i = 0; i < copies; i++) ranks[between(random, 0, ranks.size() - 1)].push_back(sent);
    return;
  }
  const uint64_t at = between(random, 1, extent[along] - 1);
  Sizes first = extent, second = extent, moved = offset;
  first[along] = at;
  second[along] -= at;
  moved[along] += at;
  divide(random, tensor, offset, first, ranks, depth - 1);
  divide(random, tensor, moved, second, ranks, depth - 1);
}

TEST_CASE("Part assembly: halves along any dimension become the tensor") {
  Random random(1);
  const std::vector<Tensor> tensors = {makeTensor(random, "rows", "F8_E4M3", {4, 3}),
                                       makeTensor(random, "columns", "BF16", {3, 4}),
                                       makeTensor(random, "scalar", "I64", {})};
  const Ranks ranks = {
      {send(tensors[0], {0, 0}, {2, 3}), send(tensors[1], {0, 0}, {3, 2}), whole(tensors[2])},
      {send(tensors[0], {2, 0}, {2, 3}), send(tensors[1], {0, 2}, {3, 2}), whole(tensors[2])}};
  const auto assembly = plan(ranks);
  PSD_REQUIRE_OK(assembly);
  PSD_REQUIRE_OK((*assembly)->allocate({}));
  CHECK((*assembly)->sends(0) == std::vector<uint32_t>{0, 1, 2});
  CHECK((*assembly)->sends(1) == std::vector<uint32_t>{0, 1});
  CHECK((*assembly)->tensors().front().name == "scalar");  // of the largest elements
  for (const uint32_t rank : {1u, 0u}) {
    CHECK_FALSE((*assembly)->isWhole());
    const Bytes stream = streamOf(**assembly, ranks, rank);
    PSD_REQUIRE_OK((*assembly)->write(rank, 0, stream));
    CHECK((*assembly)->arrived(rank) == stream.size());
  }
  checkHolds(**assembly, tensors);
}

TEST_CASE("Part assembly: memory of the same size is used again") {
  Random random(7);
  const auto assemble = [&](uint64_t bytes, PartAssembly::Memory spare) {
    const std::vector<Tensor> tensors = {makeTensor(random, "a", "U8", {bytes})};
    const Ranks ranks = {{whole(tensors[0])}};
    auto assembly = plan(ranks);
    PSD_REQUIRE_OK(assembly);
    PSD_REQUIRE_OK((*assembly)->allocate(std::move(spare)));
    PSD_REQUIRE_OK((*assembly)->write(0, 0, streamOf(**assembly, ranks, 0)));
    checkHolds(**assembly, tensors);
    return *std::move(assembly);
  };
  PartAssembly::Memory first = assemble(100, {})->release();
  const std::byte* const at = first.data();
  const auto second = assemble(100, std::move(first));
  CHECK(second->values().data() == at);
  CHECK(first.bytes() == 0);
  PartAssembly::Memory spare = second->release();
  CHECK(spare.bytes() >= 100);
  assemble(1000, std::move(spare));
}

TEST_CASE("Part assembly: the checksums of tensors that one part is all of are known") {
  Random random(8);
  const std::vector<Tensor> tensors = {makeTensor(random, "one", "U8", {8}),
                                       makeTensor(random, "two", "U8", {4})};
  const Ranks ranks = {{whole(tensors[0]), send(tensors[1], {0}, {2})}, {send(tensors[1], {2}, {2})}};
  const auto assembly = plan(ranks);
  PSD_REQUIRE_OK(assembly);
  REQUIRE((*assembly)->checksums().size() == 2);
  CHECK((*assembly)->checksums()[0] == crc32c(tensors[0].bytes));
  CHECK_FALSE((*assembly)->checksums()[1]);
}

TEST_CASE("Part assembly: errors name tensor, elements and ranks") {
  Random random(2);
  const Tensor x = makeTensor(random, "x", "F32", {4, 6}), other = makeTensor(random, "x", "F32", {4, 6}),
               short_ = makeTensor(random, "x", "F32", {4, 5}), half = makeTensor(random, "x", "F16", {4, 6});
  CHECK(refusal({{}, {}}) == "no rank gives a tensor");
  CHECK(refusal({{send(x, {0, 0}, {2, 6})}, {send(x, {3, 0}, {1, 6})}}) ==
        "tensor 'x': 6 of its elements are given by no rank, the first at [2, 0]");
  CHECK(refusal({{send(x, {0, 0}, {4, 5}), send(x, {1, 5}, {3, 1})}}) ==
        "tensor 'x': 1 of its elements is given by no rank, the first at [0, 5]");
  CHECK(refusal({{send(x, {0, 0}, {3, 6})}, {}, {send(x, {2, 0}, {2, 6})}}) ==
        "tensor 'x': rank 0 and rank 2 both give elements [2:3, 0:6]");
  CHECK(refusal({{send(x, {0, 0}, {4, 4}), send(x, {0, 3}, {4, 3})}}) ==
        "tensor 'x': rank 0 gives elements [0:4, 3:4] twice");
  CHECK(refusal({{whole(x)}, {whole(other)}}) ==
        "tensor 'x': rank 0 and rank 1 both give elements [0:4, 0:6], with different bytes");
  CHECK(refusal({{whole(x)}, {whole(short_)}}, ErrorCode::modelMismatch) ==
        "rank 0 gives x F32[4,6], and rank 1 x F32[4,5]");
  CHECK(refusal({{whole(x)}, {whole(half)}}, ErrorCode::modelMismatch) ==
        "rank 0 gives x F32[4,6], and rank 1 x F16[4,6]");
}

TEST_CASE("Part assembly: bytes must continue those that have arrived") {
  Random random(3);
  const Tensor x = makeTensor(random, "x", "I8", {8});
  const Ranks ranks = {{whole(x)}};
  const auto assembly = plan(ranks);
  PSD_REQUIRE_OK(assembly);
  PSD_REQUIRE_OK((*assembly)->allocate({}));
  const std::span<const std::byte> bytes = x.bytes;
  PSD_REQUIRE_OK((*assembly)->write(0, 0, bytes.first(3)));
  for (const auto& [offset, count] : {std::pair{0, 3}, {4, 1}, {3, 6}, {3, 0}}) {
    std::vector<std::byte> some(static_cast<size_t>(count));
    const Status written = (*assembly)->write(0, static_cast<uint64_t>(offset), some);
    REQUIRE_FALSE(written.ok());
    CHECK(written.error().code == ErrorCode::badSlice);
  }
  PSD_REQUIRE_OK((*assembly)->write(0, 3, bytes.subspan(3)));
  checkHolds(**assembly, {x});
}

TEST_CASE("Part assembly: a part with a wrong checksum is sent again, with all of its rank") {
  Random random(4);
  const std::vector<Tensor> tensors = {makeTensor(random, "a", "U8", {4}),
                                       makeTensor(random, "b", "U8", {4})};
  const Ranks ranks = {{whole(tensors[0]), whole(tensors[1])}};
  const auto assembly = plan(ranks);
  PSD_REQUIRE_OK(assembly);
  PSD_REQUIRE_OK((*assembly)->allocate({}));
  Bytes stream = streamOf(**assembly, ranks, 0);
  stream[6] ^= std::byte{1};
  const Status damaged = (*assembly)->write(0, 0, stream);
  REQUIRE_FALSE(damaged.ok());
  CHECK(damaged.error().code == ErrorCode::io);
  CHECK(damaged.message().starts_with("tensor 'b': the bytes of [0:4] that rank 0 sent have the checksum "));
  CHECK((*assembly)->arrived(0) == 0);
  CHECK((*assembly)->missing() == 8);
  stream[6] ^= std::byte{1};
  PSD_REQUIRE_OK((*assembly)->write(0, 0, stream));
  checkHolds(**assembly, tensors);
}

TEST_CASE("Part assembly: what a peer may not declare") {
  const VersionPart good{"x", "F32", {2, 3}, {0, 0}, {2, 3}, 0};
  PSD_REQUIRE_OK(checkPart(good));
  const auto why = [&good](auto change) {
    VersionPart part = good;
    change(part);
    const Status checked = checkPart(part);
    REQUIRE_FALSE(checked.ok());
    CHECK(checked.error().code == ErrorCode::invalidArgument);
    return checked.message();
  };
  using Part = VersionPart&;
  CHECK(why([](Part part) { part.name = ""; }) == "a tensor of the model has an empty name");
  CHECK(why([](Part part) { part.name = "__metadata__"; }).find("metadata") != std::string::npos);
  CHECK(why([](Part part) {
          part.dtype = "F8_E9";
        }).starts_with("tensor 'x' has dtype 'F8_E9'; expected one of F64, "));
  CHECK(why([](Part part) { part.extent = {2}; }) ==
        "tensor 'x' has 2 dimensions, and the offset of its part 2 and the extent 1");
  CHECK(why([](Part part) {
          part.offset = {1, 0};
        }) == "tensor 'x' has 2 elements in dimension 0; its part is 2 of them from 1 on");
  CHECK(why([](Part part) {
          part.offset = {UINT64_MAX, 0};
        }).find("2 elements in dimension 0") != std::string::npos);
  CHECK(why([](Part part) {
          part.shape = part.extent = {1ull << 32, 1ull << 32};
        }) == "tensor 'x' has more than 1125899906842624 bytes");
  CHECK(why([](Part part) { part.shape = part.offset = part.extent = Sizes(17, 1); }) ==
        "tensor 'x' has 17 dimensions; the limit is 16");
}

TEST_CASE("Part assembly: tensors without elements are in the version") {
  Random random(5);
  const std::vector<Tensor> tensors = {makeTensor(random, "none", "F32", {0, 4}),
                                       makeTensor(random, "one", "I8", {1})};
  const Ranks ranks = {{whole(tensors[0])}, {whole(tensors[1]), send(tensors[0], {0, 2}, {0, 1})}};
  const auto assembly = plan(ranks);
  PSD_REQUIRE_OK(assembly);
  PSD_REQUIRE_OK((*assembly)->allocate({}));
  CHECK((*assembly)->sends(0).empty());
  PSD_REQUIRE_OK((*assembly)->write(1, 0, tensors[1].bytes));
  checkHolds(**assembly, tensors);
}

TEST_CASE("Part assembly: random boxes in random order are the reference, or an error") {
  size_t whole = 0, refused = 0;
  for (uint64_t seed = 0; seed < 600; seed++) {
    INFO("seed " << seed);
    Random random(seed);
    const std::vector<std::string> dtypes = {"I8", "BF16", "F32", "I64"};
    std::vector<Tensor> tensors;
    Ranks ranks(between(random, 1, 6));
    for (uint64_t i = between(random, 1, 4); i > 0; i--) {
      Sizes shape(between(random, 0, 3));
      for (uint64_t& size : shape) size = between(random, 1, 6);
      tensors.push_back(makeTensor(random, "t" + std::to_string(i), dtypes[between(random, 0, 3)], shape));
      divide(random, tensors.back(), Sizes(shape.size(), 0), shape, ranks,
             static_cast<int>(between(random, 0, 5)));
    }
    for (auto& rank : ranks) std::ranges::shuffle(rank, random);
    const bool loses = between(random, 0, 4) == 0, doubles = between(random, 0, 4) == 0;
    auto& changed = ranks[between(random, 0, ranks.size() - 1)];
    bool wrong = false;
    if (loses && !changed.empty()) {  // unless a replica remains
      const Sent lost = changed.back();
      changed.pop_back();
      wrong = std::ranges::none_of(ranks, [&lost](const auto& rank) {
        return std::ranges::any_of(rank, [&lost](const Sent& each) { return each.part == lost.part; });
      });
      const bool remains = std::ranges::any_of(ranks, [&lost](const auto& rank) {
        return std::ranges::any_of(rank,
                                   [&lost](const Sent& each) { return each.part.name == lost.part.name; });
      });
      if (!remains) {  // a version has the tensors that some rank gives
        std::erase_if(tensors, [&lost](const Tensor& each) { return each.name == lost.part.name; });
        wrong = tensors.empty();
      }
    } else if (doubles) {  // an element of a larger tensor once more
      const Tensor& tensor = tensors[between(random, 0, tensors.size() - 1)];
      Sizes offset;
      for (const uint64_t size : tensor.shape) offset.push_back(between(random, 0, size - 1));
      const Sent one = send(tensor, offset, Sizes(offset.size(), 1));
      wrong = std::ranges::none_of(ranks, [&one](const auto& rank) {
        return std::ranges::any_of(rank, [&one](const Sent& each) { return each.part == one.part; });
      });
      changed.push_back(one);
    }
    const auto assembly = plan(ranks);
    REQUIRE(assembly.ok() != wrong);
    if (wrong) {
      refused++;
      continue;
    }
    PSD_REQUIRE_OK((*assembly)->allocate({}));
    std::vector<Bytes> streams;
    for (uint32_t rank = 0; rank < ranks.size(); rank++) streams.push_back(streamOf(**assembly, ranks, rank));
    while (!(*assembly)->isWhole()) {
      const auto rank = static_cast<uint32_t>(between(random, 0, ranks.size() - 1));
      const uint64_t at = (*assembly)->arrived(rank), left = streams[rank].size() - at;
      if (left == 0) continue;
      PSD_REQUIRE_OK(
          (*assembly)->write(rank, at, std::span(streams[rank]).subspan(at, between(random, 1, left))));
    }
    CHECK((*assembly)->unfinished().empty());
    checkHolds(**assembly, tensors);
    whole++;
  }
  CHECK(whole > 300);
  CHECK(refused > 50);
}

}  // namespace
}  // namespace psd::part_assembly_test

#include "server/publish/part_assembly.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "common/checksum/crc32c.h"
#include "common/os/huge_pages.h"
#include "server/publish/part_coverage.h"

namespace psd {
namespace {

constexpr uint64_t kAssemblyBytesMax = 1ull << 52;
constexpr size_t kAlignment = 64;

/// A tensor and all parts of it, in ascending order of the ranks.
struct Gathered {
  SafetensorsEntry entry;  // begin and end come later
  std::vector<GivenPart> given;
};

std::string describe(const VersionPart& part) {
  return SafetensorsEntry{part.name, part.dtype, part.shape}.toString();
}

Result<std::vector<Gathered>> gather(const std::vector<PartAssembly::Parts>& ranks) {
  std::vector<Gathered> tensors;
  std::unordered_map<std::string_view, size_t> places;
  for (uint32_t rank = 0; rank < ranks.size(); rank++) {
    for (uint32_t i = 0; i < ranks[rank]->size(); i++) {
      const VersionPart& part = (*ranks[rank])[i];
      const auto [place, isNew] = places.emplace(part.name, tensors.size());
      if (isNew) tensors.push_back({{part.name, part.dtype, part.shape}, {}});
      Gathered& tensor = tensors[place->second];
      if (tensor.entry.dtype != part.dtype || tensor.entry.shape != part.shape) {
        return Error{ErrorCode::modelMismatch,
                     fmt::format("rank {} gives {}, and rank {} {}", tensor.given.front().rank,
                                 describe(*tensor.given.front().part), rank, describe(part))};
      }
      tensor.given.push_back({rank, i, &part});
    }
  }
  if (tensors.empty()) return Error{ErrorCode::invalidArgument, "no rank gives a tensor"};
  std::ranges::stable_sort(tensors, std::ranges::greater(), [](const Gathered& tensor) {
    return safetensorsElementBytes(tensor.entry.dtype);
  });
  uint64_t at = 0;
  for (Gathered& tensor : tensors) {
    const uint64_t bytes = tensor.given.front().part->tensorBytes();
    if (bytes > kAssemblyBytesMax - at) {
      return Error{ErrorCode::invalidArgument,
                   fmt::format("the tensors have more than {} bytes", kAssemblyBytesMax)};
    }
    tensor.entry.begin = at;
    tensor.entry.end = at += bytes;
  }
  return tensors;
}

}  // namespace

void PartAssembly::Memory::Free::operator()(std::byte* memory) const { std::free(memory); }

PartAssembly::Memory PartAssembly::Memory::allocate(uint64_t bytes) {
  Memory memory;
  memory.data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
  memory.bytes_ = bytes;
  if (memory.data_) preferHugePages(memory.data(), bytes);
  return memory;
}

Result<std::shared_ptr<PartAssembly>> PartAssembly::plan(std::vector<Parts> ranks) {
  PSD_ASSIGN_OR_RETURN(std::vector<Gathered> tensors, gather(ranks));
  const std::shared_ptr<PartAssembly> assembly(new PartAssembly);
  for (Parts& parts : ranks) {
    assembly->streams_.push_back(std::make_unique<Stream>());
    assembly->streams_.back()->parts = std::move(parts);
  }
  // By rank and part, the begin of the tensor of those to send.
  std::vector<std::pair<std::pair<uint32_t, uint32_t>, uint64_t>> sent;
  for (Gathered& tensor : tensors) {
    PSD_ASSIGN_OR_RETURN(const std::vector<GivenPart> covering, coverTensor(std::move(tensor.given)));
    for (const GivenPart& each : covering) sent.push_back({{each.rank, each.index}, tensor.entry.begin});
    const bool isWhole = covering.size() == 1;
    assembly->checksums_.push_back(isWhole ? std::optional(covering.front().part->checksum) : std::nullopt);
    assembly->tensors_.push_back(std::move(tensor.entry));
  }
  std::ranges::sort(sent);
  for (const auto& [from, begin] : sent) {
    Stream& stream = *assembly->streams_[from.first];
    const VersionPart& part = (*stream.parts)[from.second];
    stream.sends.push_back(from.second);
    stream.pieces.push_back({&part, begin, BoxRuns(part)});
    stream.bytes += part.bytes();
  }
  assembly->missing_ = assembly->bytes();
  return assembly;
}

Status PartAssembly::allocate(Memory spare) {
  const uint64_t bytes = (this->bytes() + kAlignment) / kAlignment * kAlignment;
  const bool fits = spare.bytes() == bytes;
  if (!fits) spare = {};  // before more memory is taken
  memory_ = fits ? std::move(spare) : Memory::allocate(bytes);
  if (memory_.data() != nullptr) return {};
  return {ErrorCode::overloaded, fmt::format("out of memory: cannot allocate {} bytes for a version", bytes)};
}

void PartAssembly::restart(Stream& stream) {
  missing_ += stream.arrived - stream.inPiece;
  stream.arrived = 0;
  stream.piece = stream.inPiece = stream.checksum = 0;
}

Status PartAssembly::write(uint32_t rank, uint64_t offset, std::span<const std::byte> bytes) {
  Stream& stream = *streams_[rank];
  if (offset != stream.arrived || bytes.empty() || bytes.size() > stream.bytes - offset) {
    return {ErrorCode::badSlice,
            fmt::format("{} bytes from {} on do not continue the {} of {} that rank {} has sent",
                        bytes.size(), offset, stream.arrived.load(), stream.bytes, rank)};
  }
  while (!bytes.empty()) {
    const Piece& piece = stream.pieces[stream.piece];
    const uint64_t size = piece.part->bytes(),
                   count = std::min<uint64_t>(bytes.size(), size - stream.inPiece);
    std::byte* const tensor = memory_.data() + piece.begin;
    piece.runs.visit(stream.inPiece, count, [&](uint64_t place, uint64_t at, uint64_t length) {
      std::memcpy(tensor + place, bytes.data() + at, length);
    });
    stream.checksum = crc32c(bytes.first(count), stream.checksum);
    stream.inPiece += count;
    bytes = bytes.subspan(count);
    stream.arrived += count;
    if (stream.inPiece < size) return {};
    if (stream.checksum != piece.part->checksum) {
      const Error damaged{
          ErrorCode::io,
          fmt::format("tensor '{}': the bytes of {} that rank {} sent have the checksum {}, not {}",
                      piece.part->name, piece.part->boxText(), rank, crcText(stream.checksum),
                      crcText(piece.part->checksum))};
      restart(stream);
      return damaged;
    }
    missing_ -= size;
    stream.piece++;
    stream.inPiece = stream.checksum = 0;
  }
  return {};
}

std::vector<uint32_t> PartAssembly::unfinished() const {
  std::vector<uint32_t> ranks;
  for (uint32_t i = 0; i < streams_.size(); i++) {
    if (streams_[i]->arrived < streams_[i]->bytes) ranks.push_back(i);
  }
  return ranks;
}

}  // namespace psd

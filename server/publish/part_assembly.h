#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/safetensors/safetensors.h"
#include "common/status/status.h"
#include "server/publish/version_part.h"

namespace psd {

/// The tensors of one version, from the parts that several ranks give. Each element is given by one rank; the
/// same box from several ranks counts once if its bytes are the same. A rank sends the bytes of its parts one
/// after another, except those that a lower rank sends.
///
/// Pure. plan() and allocate() come first; then write() may run for several ranks at the same time, and the
/// other methods on any thread.
class PartAssembly {
 public:
  using Parts = std::shared_ptr<const std::vector<VersionPart>>;

  /// `ranks`: by rank, parts that checkPart() accepts. ErrorCode::modelMismatch: ranks disagree on a tensor.
  /// ErrorCode::invalidArgument: elements are given by no rank, or by several, or there are no tensors.
  static Result<std::shared_ptr<PartAssembly>> plan(std::vector<Parts> ranks);

  /// Tensors with larger elements first, so that all are aligned; otherwise as the ranks give them.
  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  uint64_t bytes() const { return tensors_.back().end; }
  /// The CRC-32C of each tensor that one part is all of.
  const std::vector<std::optional<uint32_t>>& checksums() const { return checksums_; }
  /// Memory for the bytes of a version, which later assemblies may use again.
  class Memory {
   public:
    /// Null: there is none.
    static Memory allocate(uint64_t bytes);
    std::byte* data() const { return data_.get(); }
    uint64_t bytes() const { return data_ ? bytes_ : 0; }

   private:
    struct Free {
      void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte, Free> data_;
    uint64_t bytes_ = 0;
  };
  /// Takes the memory for all bytes: `spare` if that has the size. ErrorCode::overloaded.
  Status allocate(Memory spare);
  /// Takes the memory away, once values() is not used any more.
  Memory release() { return std::exchange(memory_, {}); }

  /// Indices of the parts that the rank sends.
  const std::vector<uint32_t>& sends(uint32_t rank) const { return streams_[rank]->sends; }
  /// Number of bytes of those parts that have arrived.
  uint64_t arrived(uint32_t rank) const { return streams_[rank]->arrived; }
  /// Takes the next bytes of a rank's parts. ErrorCode::badSlice if they do not continue those that have
  /// arrived. ErrorCode::io, naming the tensor, if a part does not have its checksum: then nothing of the
  /// rank has arrived.
  Status write(uint32_t rank, uint64_t offset, std::span<const std::byte> bytes);

  /// Number of bytes that have not arrived, or whose part has not been verified.
  uint64_t missing() const { return missing_; }
  bool isWhole() const { return missing_ == 0; }
  /// The ranks whose bytes have not all arrived.
  std::vector<uint32_t> unfinished() const;
  /// The bytes of all tensors, once they are whole.
  std::span<const std::byte> values() const { return {memory_.data(), bytes()}; }

 private:
  struct Piece {
    const VersionPart* part;
    uint64_t begin;  // of its tensor
    BoxRuns runs;
  };
  /// What one rank sends.
  struct Stream {
    Parts parts;
    std::vector<uint32_t> sends;
    std::vector<Piece> pieces;
    uint64_t bytes = 0;
    std::atomic<uint64_t> arrived{0};
    size_t piece = 0;       // that continues
    uint64_t inPiece = 0;   // bytes of it that have arrived
    uint32_t checksum = 0;  // of these
  };

  PartAssembly() = default;
  void restart(Stream& stream);

  std::vector<SafetensorsEntry> tensors_;
  std::vector<std::optional<uint32_t>> checksums_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by rank
  Memory memory_;
  std::atomic<uint64_t> missing_{0};
};

}  // namespace psd

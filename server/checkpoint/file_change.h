#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace psd {

/// A change of a primary's file beside the model, such as a published version, that its standby repeats. A
/// value type.
struct FileChange {
  enum class Kind : uint32_t {
    append,  ///< `bytes` at `offset`; at 0 a new file begins, which is not in place yet
    commit,  ///< the file is complete and takes its place
    remove,
  };
  Kind kind = Kind::remove;
  std::string name;                  ///< within the folder of these files
  uint64_t offset = 0;               ///< of `bytes` in the file; `commit`: the file's size
  std::span<const std::byte> bytes;  ///< valid while their owner lives
};

}  // namespace psd

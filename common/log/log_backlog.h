#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include <spdlog/common.h>

namespace psd {

/// Log lines that wait to be written, at most kBytesMax. A line that does not fit is dropped and counted.
/// Information may fill half of the capacity, warnings three quarters and errors all of it, so errors are
/// dropped last. Not thread-safe; its owner guards it.
class LogBacklog {
 public:
  static constexpr size_t kBytesMax = 1 << 20;

  /// Lines written to the target in one call. A value type.
  struct Batch {
    std::string text;
    uint64_t lines = 0;
  };

  /// Returns false if the line was dropped.
  bool push(spdlog::level::level_enum level, std::string line);
  /// Takes the oldest lines, at least one and about `most` bytes, which count towards the capacity until
  /// written().
  Batch take(size_t most);
  void written() { taken_ = 0; }
  bool empty() const { return lines_.empty(); }
  /// Lines dropped since the last call.
  uint64_t takeDropped();

 private:
  std::deque<std::string> lines_;
  size_t queued_ = 0, taken_ = 0;  ///< bytes
  uint64_t dropped_ = 0;
};

}  // namespace psd

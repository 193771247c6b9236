#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace psd::fuzz {

using Bytes = std::span<const std::byte>;

/// Something that reads bytes which psd did not write. A line of fuzz_list.h.
struct FuzzTarget {
  std::string_view name;
  std::string_view summary;  ///< for people
  /// Takes any bytes. Ends the process when it finds something, as a sanitizer does. One call at a time.
  void (*run)(Bytes input);
  /// Inputs to begin from, each of which is taken as right.
  std::vector<std::string> (*seeds)();
};

/// What has to hold whatever the bytes are.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: it does not hold that %s\n", what);
  std::abort();
}

inline std::string_view textOf(Bytes input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
inline Bytes bytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace psd::fuzz

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

/// A reader of bytes that psd did not write. A line of fuzz_list.h.
struct FuzzTarget {
  std::string_view name;
  std::string_view summary;  ///< human-readable
  /// Takes any bytes. Ends the process on a finding, like a sanitizer. One call at a time.
  void (*run)(Bytes input);
  /// Initial inputs, each of which is accepted as valid.
  std::vector<std::string> (*seeds)();
};

/// Requires an invariant that holds for any bytes.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: violated: %s\n", what);
  std::abort();
}

inline std::string_view textOf(Bytes input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}
inline Bytes bytesOf(std::string_view text) { return std::as_bytes(std::span(text)); }

}  // namespace psd::fuzz

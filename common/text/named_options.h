#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// The options after a name in a specification, "topk:fraction=0.01,momentum=0.9", as read by the
/// implementation of that name. Owned by one thread; the texts passed in outlive it.
class NamedOptions {
 public:
  /// `what`: the kind of thing, for errors: "codec". `text`: "fraction=0.01,momentum=0.9", or empty.
  NamedOptions(std::string_view what, std::string_view name, std::string_view text);

  /// Reads a number from `min` to `max`; `fallback` is the default.
  double number(std::string_view key, double fallback, double min, double max);
  /// Reads an integer.
  uint64_t count(std::string_view key, uint64_t fallback, uint64_t min, uint64_t max);
  /// Reads one of `words`; the first is the default.
  std::string_view word(std::string_view key, const std::vector<std::string_view>& words);

  /// The first problem, or ok. Called after all options were read.
  Status finish() const;
  /// "name:key=value,…" with every option that was read.
  const std::string& spec() const { return spec_; }

 private:
  struct Option {
    std::string_view key, value;
    bool read = false;
  };
  /// The option's text, or null if not given.
  const std::string_view* take(std::string_view key);
  template <class Number>
  Number numberFrom(std::string_view key, Number fallback, Number min, Number max, const char* kind);
  void keep(std::string_view key, std::string_view value);
  void problem(std::string message);

  std::string_view what_, name_;
  std::vector<Option> given_;
  std::vector<std::string_view> known_;
  std::string problem_;
  std::string spec_;
};

}  // namespace psd

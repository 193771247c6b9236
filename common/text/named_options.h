#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"

namespace psd {

/// The options behind a name that people choose something by, "topk:fraction=0.01,momentum=0.9", as whoever
/// goes by that name reads them. Owned by one thread; the texts that it was given outlive it.
class NamedOptions {
 public:
  /// `what`: the kind of thing, for errors: "codec". `text`: "fraction=0.01,momentum=0.9", or empty.
  NamedOptions(std::string_view what, std::string_view name, std::string_view text);

  /// A number from `min` to `max`, and its default.
  double number(std::string_view key, double fallback, double min, double max);
  /// A whole one.
  uint64_t count(std::string_view key, uint64_t fallback, uint64_t min, uint64_t max);
  /// One of these words; the first is the default.
  std::string_view word(std::string_view key, const std::vector<std::string_view>& words);

  /// To be called after all options were read: the first problem, or ok.
  Status finish() const;
  /// "name:key=value,…" with every option that was read.
  const std::string& spec() const { return spec_; }

 private:
  struct Option {
    std::string_view key, value;
    bool read = false;
  };
  /// Its text, or null where it is not given.
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

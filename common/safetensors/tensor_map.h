#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/os/env.h"
#include "common/safetensors/safetensors.h"
#include "common/status/status.h"

namespace psd {

/// A tensor that a TensorMap makes, and where its bytes are. A value type.
struct MappedTensor {
  /// `count` runs of `bytes`, the first at `begin`, each `stride` after the one before it.
  struct Runs {
    uint64_t begin = 0, bytes = 0, stride = 0, count = 0;
  };

  SafetensorsEntry entry;   ///< `begin` and `end` are its places in the data of the new file
  std::vector<Runs> parts;  ///< in the data of the source file
  uint64_t turns = 1;       ///< how often all parts take turns, each with as many bytes at every turn

  /// Passes the tensor's bytes to `sink`, in order; `data` is the data of the source file.
  Status forEach(std::span<const std::byte> data,
                 const std::function<Status(std::span<const std::byte>)>& sink) const;
};

/// A name of a tensor with placeholders: "layers.{n}.weight". A placeholder stands for a number. A value
/// type.
class NamePattern {
 public:
  using Numbers = std::map<std::string, std::string>;

  static Result<NamePattern> parse(std::string_view text);
  /// The numbers for which this is the name; nullopt: there are none.
  std::optional<Numbers> match(std::string_view name) const;
  /// The name for these numbers, which has one for each placeholder.
  std::string nameFor(const Numbers& numbers) const;
  const std::vector<std::string>& placeholders() const { return placeholders_; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::vector<std::string> placeholders_, literals_;  // literals_[i] precedes placeholders_[i]
};

/// Renames, slices and concatenates the tensors of a file: what `--map` reads
/// (docs/guides/published_versions.md). Immutable, hence thread-safe.
class TensorMap {
 public:
  /// Errors name `origin` and the place in the JSON.
  static Result<TensorMap> parse(std::string_view text, std::string_view origin);
  static Result<TensorMap> read(Env& env, const std::string& path);

  /// CRC-32C of the map without comments and spaces: eight hexadecimal digits.
  const std::string& checksum() const { return checksum_; }

  /// The tensors that the map makes of those of a file, in the order of their data.
  /// ErrorCode::invalidArgument names the rule and the tensor that it does not fit.
  Result<std::vector<MappedTensor>> apply(const std::vector<SafetensorsEntry>& sources) const;

 private:
  using Json = nlohmann::ordered_json;
  struct Source {
    NamePattern name;
    uint64_t dim = 0, begin = 0, end = UINT64_MAX;  ///< UINT64_MAX: to the end
    bool whole = true;
  };
  struct Rule {
    NamePattern target;
    std::string place;  ///< in the JSON
    std::vector<Source> sources;
    uint64_t dim = 0;  ///< of the concatenation
  };
  class Making;

  Error wrong(const std::string& place, const std::string& why) const;
  Status readRule(const std::string& target, const Json& value);
  Result<Source> readSource(const std::string& place, const Json& value) const;
  Result<uint64_t> readNumber(const std::string& place, const Json& value) const;
  Status checkPlaceholders(const Rule& rule) const;

  std::string origin_, checksum_;
  bool keepsOthers_ = true;
  std::vector<Rule> rules_;
};

}  // namespace psd

#include "common/safetensors/tensor_map.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "common/checksum/crc32c.h"
#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr uint64_t kToEnd = UINT64_MAX;
constexpr size_t kGatherBytes = 1 << 16, kSmallRun = 1 << 12;

bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isPlaceholderChar(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }

/// The place of a key in the JSON, for messages.
std::string placeIn(std::string_view object, const std::string& key) {
  return fmt::format("{}[\"{}\"]", object, keyText(key));
}

/// Takes the bytes of one part, turn by turn.
class PartCursor {
 public:
  PartCursor(std::span<const std::byte> data, const MappedTensor::Runs& runs) : data_(data), runs_(runs) {}

  template <class Take>
  Status take(uint64_t bytes, const Take& to) {
    while (bytes > 0) {
      const uint64_t count = std::min(bytes, runs_.bytes - within_);
      PSD_RETURN_IF_ERROR(to(data_.subspan(runs_.begin + run_ * runs_.stride + within_, count)));
      bytes -= count;
      within_ += count;
      if (within_ < runs_.bytes) continue;
      within_ = 0;
      run_++;
    }
    return {};
  }

 private:
  const std::span<const std::byte> data_;
  const MappedTensor::Runs runs_;
  uint64_t run_ = 0, within_ = 0;
};

}  // namespace

Status MappedTensor::forEach(std::span<const std::byte> data,
                             const std::function<Status(std::span<const std::byte>)>& sink) const {
  std::vector<std::byte> gathered;  // of small runs
  const auto flush = [&]() -> Status {
    if (gathered.empty()) return {};
    PSD_RETURN_IF_ERROR(sink(gathered));
    gathered.clear();
    return {};
  };
  const auto to = [&](std::span<const std::byte> run) -> Status {
    if (run.size() < kSmallRun) {
      gathered.insert(gathered.end(), run.begin(), run.end());
      return gathered.size() < kGatherBytes ? Status() : flush();
    }
    PSD_RETURN_IF_ERROR(flush());
    return sink(run);
  };
  std::vector<PartCursor> cursors;
  for (const Runs& part : parts) cursors.emplace_back(data, part);
  for (uint64_t turn = 0; turn < turns; turn++) {
    for (size_t i = 0; i < parts.size(); i++) {
      PSD_RETURN_IF_ERROR(cursors[i].take(parts[i].bytes * parts[i].count / turns, to));
    }
  }
  return flush();
}

Result<NamePattern> NamePattern::parse(std::string_view text) {
  const auto bad = [](std::string why) { return Error{ErrorCode::invalidArgument, std::move(why)}; };
  NamePattern pattern;
  pattern.text_ = text;
  if (text.empty()) return bad("the name of a tensor is empty");
  if (text == kReservedName) return bad("no tensor can have this name");
  std::string literal;
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    if (c == '}') return bad("'}' without '{'");
    if (c != '{') {
      if (isDigit(c) && literal.empty() && !pattern.placeholders_.empty()) {
        return bad("a digit follows a placeholder, which stands for a number");
      }
      literal += c;
      continue;
    }
    const size_t end = text.find('}');
    const std::string_view name = text.substr(0, end);
    if (end == std::string_view::npos || name.empty() || !std::ranges::all_of(name, isPlaceholderChar)) {
      return bad("a placeholder is '{' lowercase letters '}', as in layers.{n}.weight");
    }
    if (literal.empty() && !pattern.placeholders_.empty())
      return bad("two placeholders have no text between them");
    pattern.literals_.push_back(std::exchange(literal, {}));
    pattern.placeholders_.emplace_back(name);
    text.remove_prefix(end + 1);
  }
  pattern.literals_.push_back(std::move(literal));
  return pattern;
}

std::optional<NamePattern::Numbers> NamePattern::match(std::string_view name) const {
  Numbers numbers;
  for (size_t i = 0;; i++) {
    if (!name.starts_with(literals_[i])) return {};
    name.remove_prefix(literals_[i].size());
    if (i == placeholders_.size()) break;
    const size_t digits = static_cast<size_t>(std::ranges::find_if_not(name, isDigit) - name.begin());
    if (digits == 0) return {};
    const std::string number(name.substr(0, digits));
    if (numbers.try_emplace(placeholders_[i], number).first->second != number) return {};
    name.remove_prefix(digits);
  }
  if (!name.empty()) return {};
  return numbers;
}

std::string NamePattern::nameFor(const Numbers& numbers) const {
  std::string name = literals_.front();
  for (size_t i = 0; i < placeholders_.size(); i++) {
    name += numbers.at(placeholders_[i]);
    name += literals_[i + 1];
  }
  return name;
}

Error TensorMap::wrong(const std::string& place, const std::string& why) const {
  return {ErrorCode::invalidArgument, fmt::format("{}: {}: {}", origin_, place, why)};
}

Result<TensorMap> TensorMap::read(Env& env, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(const Json document, readJsonFile(env, path));
  return parse(jsonText(document), quotedPath(path));
}

Result<TensorMap> TensorMap::parse(std::string_view text, std::string_view origin) {
  PSD_ASSIGN_OR_RETURN(const Json document, parseJson(text, origin));
  TensorMap map;
  map.origin_ = origin;
  const std::string canonical = jsonText(document);
  map.checksum_ = crcText(crc32c(std::as_bytes(std::span(canonical))));
  if (!document.is_object()) return map.wrong("the map", "expected an object with the key tensors");
  for (const auto& [key, value] : document.items()) {
    if (key == "others") {
      if (value != "keep" && value != "drop") {
        return map.wrong(key, fmt::format("expected \"keep\" or \"drop\", got {}", describeJson(value)));
      }
      map.keepsOthers_ = value == "keep";
    } else if (key == "tensors") {
      if (!value.is_object()) return map.wrong(key, "expected an object, got " + describeJson(value));
      for (const auto& [target, rule] : value.items()) PSD_RETURN_IF_ERROR(map.readRule(target, rule));
    } else {
      return map.wrong(keyText(key), "unknown key; there are tensors and others");
    }
  }
  if (map.rules_.empty()) return map.wrong("tensors", "the map names no tensor");
  return map;
}

Status TensorMap::readRule(const std::string& target, const Json& value) {
  Rule rule;
  rule.place = placeIn("tensors", target);
  auto name = NamePattern::parse(target);
  if (!name.ok()) return wrong(rule.place, name.message());
  if (!isUtf8(target)) return wrong(rule.place, "the name is not UTF-8");
  rule.target = *std::move(name);
  const Json* list = value.is_array() ? &value : nullptr;
  std::string place = rule.place;
  if (value.is_object() && value.contains("concat")) {
    for (const auto& [key, each] : value.items()) {
      if (key == "concat") {
        list = &each;
        place += ".concat";
      } else if (key == "dim") {
        PSD_ASSIGN_OR_RETURN(rule.dim, readNumber(rule.place + ".dim", each));
      } else {
        return wrong(rule.place + "." + keyText(key), "unknown key; beside concat there is dim");
      }
    }
    if (!list->is_array()) return wrong(place, "expected a list of tensors, got " + describeJson(*list));
  }
  if (list == nullptr) {
    PSD_ASSIGN_OR_RETURN(Source source, readSource(place, value));
    rule.sources.push_back(std::move(source));
  } else {
    for (size_t i = 0; i < list->size(); i++) {
      PSD_ASSIGN_OR_RETURN(Source source, readSource(fmt::format("{}[{}]", place, i), (*list)[i]));
      rule.sources.push_back(std::move(source));
    }
    if (rule.sources.empty()) return wrong(place, "the list is empty");
  }
  PSD_RETURN_IF_ERROR(checkPlaceholders(rule));
  rules_.push_back(std::move(rule));
  return {};
}

Result<TensorMap::Source> TensorMap::readSource(const std::string& place, const Json& value) const {
  Source source;
  const Json* from = value.is_string() ? &value : nullptr;
  bool hasDim = false;
  if (value.is_object()) {
    for (const auto& [key, each] : value.items()) {
      if (key == "from") {
        from = &each;
        continue;
      }
      if (key != "dim" && key != "begin" && key != "end") {
        return wrong(place + "." + keyText(key), "unknown key; there are from, dim, begin and end");
      }
      uint64_t& number = key == "dim" ? source.dim : key == "begin" ? source.begin : source.end;
      PSD_ASSIGN_OR_RETURN(number, readNumber(place + "." + key, each));
      if (key == "dim") hasDim = true;
      if (key != "dim") source.whole = false;
    }
    if (from == nullptr) return wrong(place, "it has no key from, which names a tensor");
    if (!from->is_string()) return wrong(place + ".from", "expected a name, got " + describeJson(*from));
  }
  if (from == nullptr) {
    return wrong(place,
                 R"(expected a name, {"from": NAME, …} or a list of these, got )" + describeJson(value));
  }
  if (hasDim && source.whole) return wrong(place + ".dim", "a slice along dim also needs begin or end");
  if (source.begin >= source.end) return wrong(place, "begin is not below end");
  auto name = NamePattern::parse(from->get_ref<const std::string&>());
  if (!name.ok()) return wrong(place, name.message());
  source.name = *std::move(name);
  return source;
}

Result<uint64_t> TensorMap::readNumber(const std::string& place, const Json& value) const {
  const auto* number = value.get_ptr<const Json::number_unsigned_t*>();
  if (number == nullptr || *number == kToEnd) {
    return wrong(place, "expected a whole number from 0 on, got " + describeJson(value));
  }
  return *number;
}

Status TensorMap::checkPlaceholders(const Rule& rule) const {
  const auto namesOf = [](const NamePattern& pattern) {
    return std::unordered_set<std::string>(pattern.placeholders().begin(), pattern.placeholders().end());
  };
  const auto wanted = namesOf(rule.target);
  bool found = wanted.empty();
  for (const Source& source : rule.sources) {
    const auto names = namesOf(source.name);
    if (names.empty()) continue;
    if (names != wanted) {
      return wrong(rule.place,
                   fmt::format("'{}' has other placeholders than the target", printable(source.name.text())));
    }
    found = true;
  }
  if (!found) return wrong(rule.place, "no tensor that it is made of has its placeholders");
  return {};
}

/// One run of apply().
class TensorMap::Making {
 public:
  Making(const TensorMap& map, const std::vector<SafetensorsEntry>& sources) : map_(map), sources_(sources) {
    for (size_t i = 0; i < sources.size(); i++) places_.emplace(sources[i].name, i);
  }

  Result<std::vector<MappedTensor>> run() {
    for (const Rule& rule : map_.rules_) PSD_RETURN_IF_ERROR(addAll(rule));
    if (map_.keepsOthers_) PSD_RETURN_IF_ERROR(keepOthers());
    return inOrder();
  }

 private:
  struct Made {
    MappedTensor tensor;
    size_t first = 0;  ///< index of its first source
  };

  Status keepOthers() {
    for (size_t i = 0; i < sources_.size(); i++) {
      if (used_.contains(i)) continue;
      Made kept{{sources_[i], {}, 1}, i};
      const uint64_t bytes = sources_[i].end - sources_[i].begin;
      if (bytes > 0) kept.tensor.parts.push_back({sources_[i].begin, bytes, bytes, 1});
      if (!targets_.insert(sources_[i].name).second) {
        return {ErrorCode::invalidArgument,
                fmt::format("{}: tensor '{}' is made by a rule, and the file has another one of this name, "
                            "which no rule uses and \"others\": \"keep\" keeps",
                            map_.origin_, printable(sources_[i].name))};
      }
      made_.push_back(std::move(kept));
    }
    return {};
  }

  /// Makes the tensors of a rule: one for each set of numbers for which its first source exists.
  Status addAll(const Rule& rule) {
    if (rule.target.placeholders().empty()) return add(rule, {});
    const auto pattern = std::ranges::find_if(
        rule.sources, [](const Source& source) { return !source.name.placeholders().empty(); });
    bool found = false;
    for (const SafetensorsEntry& source : sources_) {
      const auto numbers = pattern->name.match(source.name);
      if (!numbers) continue;
      found = true;
      PSD_RETURN_IF_ERROR(add(rule, *numbers));
    }
    if (found) return {};
    return map_.wrong(rule.place,
                      fmt::format("'{}' is the name of no tensor", printable(pattern->name.text())));
  }

  Status add(const Rule& rule, const NamePattern::Numbers& numbers) {
    Made made;
    SafetensorsEntry& target = made.tensor.entry;
    target.name = rule.target.nameFor(numbers);
    const auto bad = [&](const std::string& why) {
      return map_.wrong(rule.place, fmt::format("tensor '{}': {}", printable(target.name), why));
    };
    for (size_t i = 0; i < rule.sources.size(); i++) {
      const Source& from = rule.sources[i];
      const std::string name = from.name.nameFor(numbers);
      const auto place = places_.find(name);
      if (place == places_.end()) return bad(fmt::format("there is no tensor '{}'", printable(name)));
      used_.insert(place->second);
      if (i == 0) made.first = place->second;
      const SafetensorsEntry& source = sources_[place->second];
      SafetensorsEntry piece = source;
      PSD_RETURN_IF_ERROR(slice(from, source, piece, made.tensor.parts, bad));
      if (i == 0) {
        target.dtype = piece.dtype;
        target.shape = piece.shape;
      }
      const bool joins = rule.sources.size() > 1 || rule.dim > 0;
      if (joins) PSD_RETURN_IF_ERROR(join(target, piece, rule.dim, i == 0, bad));
    }
    for (size_t d = 0; d < rule.dim; d++) made.tensor.turns *= target.shape[d];
    if (made.tensor.parts.empty()) made.tensor.turns = 0;
    for (const MappedTensor::Runs& part : made.tensor.parts) target.end += part.bytes * part.count;
    if (!targets_.insert(target.name).second) return bad("another rule also makes it");
    made_.push_back(std::move(made));
    return {};
  }

  /// Adds the runs of a slice, and sets its shape.
  template <class Bad>
  static Status slice(const Source& from, const SafetensorsEntry& source, SafetensorsEntry& piece,
                      std::vector<MappedTensor::Runs>& parts, const Bad& bad) {
    const uint64_t bytes = source.end - source.begin;
    if (safetensorsElementBytes(source.dtype) == 0) {
      return bad(fmt::format("{} has an unknown dtype", source.toString()));
    }
    if (from.whole) {
      if (bytes > 0) parts.push_back({source.begin, bytes, bytes, 1});
      return Status();
    }
    if (from.dim >= source.shape.size())
      return bad(fmt::format("{} has no dimension {}", source.toString(), from.dim));
    const uint64_t extent = source.shape[from.dim], end = from.end == kToEnd ? extent : from.end;
    if (end > extent || from.begin >= end) {
      return bad(fmt::format("{} has no elements {} to {} of dimension {}", source.toString(), from.begin,
                             end, from.dim));
    }
    piece.shape[from.dim] = end - from.begin;
    if (bytes == 0) return {};
    uint64_t count = 1;
    for (size_t d = 0; d < from.dim; d++) count *= source.shape[d];
    const uint64_t stride = bytes / count, each = stride / extent;
    parts.push_back({source.begin + from.begin * each, (end - from.begin) * each, stride, count});
    return {};
  }

  /// Adds a piece to the shape of a concatenation.
  template <class Bad>
  static Status join(SafetensorsEntry& target, const SafetensorsEntry& piece, uint64_t dim, bool first,
                     const Bad& bad) {
    if (dim >= piece.shape.size()) return bad(fmt::format("{} has no dimension {}", piece.toString(), dim));
    if (first) return {};
    if (piece.dtype != target.dtype) {
      return bad(fmt::format("{} is not of the dtype {}", piece.toString(), printable(target.dtype, 20)));
    }
    std::vector<uint64_t> shape = piece.shape;
    if (shape.size() == target.shape.size()) shape[dim] = target.shape[dim];
    if (shape != target.shape) {
      return bad(fmt::format("{} does not fit {} before it, along dimension {}", piece.toString(),
                             target.toString(), dim));
    }
    if (__builtin_add_overflow(target.shape[dim], piece.shape[dim], &target.shape[dim])) {
      return bad("it is too large");
    }
    return {};
  }

  /// The tensors in the order of their first sources, those with larger elements first, which keeps each of
  /// them aligned.
  Result<std::vector<MappedTensor>> inOrder() {
    std::ranges::stable_sort(made_, [](const Made& one, const Made& other) {
      const auto key = [](const Made& made) {
        return std::pair(UINT64_MAX - safetensorsElementBytes(made.tensor.entry.dtype), made.first);
      };
      return key(one) < key(other);
    });
    std::vector<MappedTensor> tensors;
    uint64_t at = 0;
    for (Made& made : made_) {
      SafetensorsEntry& entry = made.tensor.entry;
      const uint64_t bytes = entry.end - entry.begin;
      entry.begin = at;
      if (__builtin_add_overflow(at, bytes, &at)) {
        return map_.wrong("tensors", "the tensors are too large");
      }
      entry.end = at;
      tensors.push_back(std::move(made.tensor));
    }
    return tensors;
  }

  const TensorMap& map_;
  const std::vector<SafetensorsEntry>& sources_;
  std::unordered_map<std::string, size_t> places_;
  std::unordered_set<size_t> used_;
  std::unordered_set<std::string> targets_;
  std::vector<Made> made_;
};

Result<std::vector<MappedTensor>> TensorMap::apply(const std::vector<SafetensorsEntry>& sources) const {
  return Making(*this, sources).run();
}

}  // namespace psd

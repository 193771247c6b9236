#include "common/config/object_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/config/json_file.h"
#include "common/text/text.h"

namespace psd {

using Json = nlohmann::ordered_json;

/// A key that a caller has read or asked for.
struct ObjectReader::Entry {
  enum class Kind { asked, refused, value, object, list };
  std::string key;
  Kind kind = Kind::asked;
  Json value{};                   ///< Kind::value: the value that was returned
  bool isDefault = false;         ///< Kind::value: the value is the fallback
  bool alwaysOffDefault = false;  ///< see ObjectReader::alwaysOffDefault()
  std::vector<Node*> children{};  ///< Kind::object: one; Kind::list: its elements
};

/// One object of the document, or one that is absent.
struct ObjectReader::Node {
  const Json* json = nullptr;  ///< null when absent or not an object
  std::string path;
  const Json* instead = nullptr;  ///< what the document has in place of the object
  std::vector<Entry> entries{};
  std::unordered_map<std::string, size_t> places{};            ///< of the entries, by key
  std::unordered_map<std::string_view, const Json*> values{};  ///< of `json` by key, after the first look-up

  Entry& entry(std::string_view key) {
    const auto [place, added] = places.try_emplace(std::string(key), entries.size());
    return added ? entries.emplace_back(Entry{std::string(key)}) : entries[place->second];
  }

  /// The only read key below that is named so, as a path; empty if there is none or several.
  std::string pathBelow(std::string_view name) const {
    std::vector<std::string> found;
    for (const Entry& entry : entries) {
      for (const Node* child : entry.children) {
        const Entry* const own = child->find(name);
        const bool read = own != nullptr && own->kind != Entry::Kind::refused;
        std::string path = read ? child->path + "." + own->key : child->pathBelow(name);
        if (!path.empty()) found.push_back(std::move(path));
      }
    }
    return found.size() == 1 ? found.front() : "";
  }

  /// The value that the document has for `key`, or null.
  const Json* given(std::string_view key) {
    if (json == nullptr) return nullptr;
    if (values.empty()) {
      for (const auto& [name, value] : json->get_ref<const Json::object_t&>()) values.emplace(name, &value);
    }
    const auto found = values.find(key);
    return found == values.end() ? nullptr : found->second;
  }

  Json effective() const {
    Json result = Json::object();
    for (const Entry& entry : entries) {
      switch (entry.kind) {
        case Entry::Kind::asked:
        case Entry::Kind::refused: break;
        case Entry::Kind::value: appendMember(result, entry.key, entry.value); break;
        case Entry::Kind::object: appendMember(result, entry.key, entry.children[0]->effective()); break;
        case Entry::Kind::list: {
          Json list = Json::array();
          for (const Node* child : entry.children) list.push_back(child->effective());
          appendMember(result, entry.key, std::move(list));
          break;
        }
      }
    }
    return result;
  }

  void addOffDefault(std::vector<std::string>& paths) const {
    for (const Entry& entry : entries) {
      const bool value = entry.kind == Entry::Kind::value && (entry.alwaysOffDefault || !entry.isDefault);
      const bool list = entry.kind == Entry::Kind::list && !entry.children.empty();
      if (value || list) paths.push_back((path.empty() ? "" : path + ".") + entry.key);
      if (entry.kind == Entry::Kind::object) entry.children[0]->addOffDefault(paths);
    }
  }

  /// The message for the first unknown key here or below; else empty.
  std::string unknownKey() const {
    if (json == nullptr) return "";
    std::vector<std::string_view> known;
    for (const Entry& entry : entries) {
      if (entry.kind != Entry::Kind::refused) known.push_back(entry.key);
    }
    for (const auto& [key, value] : json->items()) {
      const Entry* found = find(key);
      if (found == nullptr) return describeUnknown(key, known);
      for (const Node* child : found->children) {
        if (std::string message = child->unknownKey(); !message.empty()) return message;
      }
    }
    return "";
  }

 private:
  const Entry* find(std::string_view key) const {
    const auto found = places.find(std::string(key));
    return found == places.end() ? nullptr : &entries[found->second];
  }

  std::string describeUnknown(const std::string& key, const std::vector<std::string_view>& known) const {
    const std::string place = (path.empty() ? "" : path + ".") + keyText(key);
    std::string message = place + ": unknown key; ";
    if (const std::string below = pathBelow(key); !below.empty()) {
      return message + "did you mean '" + below + "'?";
    }
    if (std::string_view near = nearest(key, known); !near.empty()) {
      return message + "did you mean '" + std::string(near) + "'?";
    }
    if (const Entry* type = find("type"); type != nullptr && type->value.is_string()) {
      message = place + ": no key of type '" + printable(type->value.get<std::string>()) + "'; ";
    }
    message += "valid keys:";
    for (std::string_view name : known) message += (name == known[0] ? " " : ", ") + std::string(name);
    return message;
  }
};

struct ObjectReader::State {
  Json document;
  std::deque<Node> nodes{};             ///< addresses are stable; the root first
  std::optional<std::string> wrong{};   ///< first wrong type or value
  const Node* wrongNode = nullptr;      ///< the object that `wrong` is about, if it is about one
  std::optional<std::string> failed{};  ///< first fail()

  Node* makeNode(const Json* json, std::string path) {
    return &nodes.emplace_back(Node{json, std::move(path)});
  }
  /// Adds to the error about a node how to write the type that stands in its place.
  void suggestType(const Node& node, const std::vector<std::string_view>& types) {
    if (wrongNode != &node || !node.instead->is_string()) return;
    const std::string_view near = nearest(node.instead->get<std::string>(), types);
    if (!near.empty()) *wrong += "; did you mean {\"type\": \"" + std::string(near) + "\"}?";
  }
};

namespace {

std::string plain(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", number);
  return text;
}

/// "a number greater than 0", "a number from 0 to 1", "a number of at least 0 and less than 1", …
std::string describeRange(const NumberRange& range) {
  bool hasMin = std::isfinite(range.min), hasMax = std::isfinite(range.max);
  std::string text = "a number";
  if (hasMin && hasMax && !range.minExclusive && !range.maxExclusive) {
    return text + " from " + plain(range.min) + " to " + plain(range.max);
  }
  if (hasMin) text += (range.minExclusive ? " greater than " : " of at least ") + plain(range.min);
  if (hasMin && hasMax) text += " and";
  if (hasMax) text += (range.maxExclusive ? " less than " : " of at most ") + plain(range.max);
  return text;
}

std::optional<double> asNumber(const Json& value, const NumberRange& range) {
  if (!value.is_number()) return {};
  double number = value.get<double>();
  bool aboveMin = range.minExclusive ? number > range.min : number >= range.min;
  bool belowMax = range.maxExclusive ? number < range.max : number <= range.max;
  if (!std::isfinite(number) || !aboveMin || !belowMax) return {};
  return number;
}

std::string describeIntegers(uint64_t min, uint64_t max) {
  if (max == std::numeric_limits<uint64_t>::max()) return "an integer of at least " + std::to_string(min);
  return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

/// Accepts 4 and, like JSON Schema, 4.0.
std::optional<uint64_t> asInteger(const Json& value, uint64_t min, uint64_t max) {
  std::optional<uint64_t> integer;
  if (value.is_number_unsigned() || (value.is_number_integer() && value.get<int64_t>() >= 0)) {
    integer = value.get<uint64_t>();
  } else if (value.is_number_float()) {
    double number = value.get<double>();
    constexpr double kBeyond = 18446744073709551616.0;  // 2^64
    if (number >= 0 && number < kBeyond && std::trunc(number) == number) {
      integer = static_cast<uint64_t>(number);
    }
  }
  if (!integer || *integer < min || *integer > max) return {};
  return integer;
}

std::optional<std::string> asText(const Json& value) {
  if (!value.is_string()) return {};
  return value.get<std::string>();
}

}  // namespace

ObjectReader::ObjectReader(Json json) : state_(std::make_shared<State>(State{std::move(json)})) {
  bool isObject = state_->document.is_object();
  node_ = state_->makeNode(isObject ? &state_->document : nullptr, "");
  if (!isObject) wrong("the configuration", "an object", state_->document);
}

ObjectReader::ObjectReader(std::shared_ptr<State> state, Node* node)
    : state_(std::move(state)), node_(node) {}

const Json* ObjectReader::given(std::string_view key) const {
  node_->entry(key);
  return node_->given(key);
}

void ObjectReader::wrong(const std::string& path, std::string_view right, const Json& value,
                         const std::string& hint) {
  if (state_->wrong) return;
  state_->wrong = path + ": must be " + std::string(right) + ", not " + describeJson(value) + hint;
}

void ObjectReader::record(std::string_view key, Json value, bool isDefault) {
  Entry& entry = node_->entry(key);
  entry.kind = Entry::Kind::value;
  entry.value = std::move(value);
  entry.isDefault = isDefault;
}

void ObjectReader::alwaysOffDefault(std::string_view key) { node_->entry(key).alwaysOffDefault = true; }

bool ObjectReader::has(std::string_view key) const { return given(key) != nullptr; }

std::vector<std::string> ObjectReader::keys() const {
  std::vector<std::string> names;
  if (node_->json == nullptr) return names;
  for (const auto& [key, value] : node_->json->items()) names.push_back(key);
  return names;
}

bool ObjectReader::hasObject(std::string_view key) const {
  const Json* value = given(key);
  return value != nullptr && value->is_object();
}

bool ObjectReader::hasText(std::string_view key) const {
  const Json* value = given(key);
  return value != nullptr && value->is_string();
}

double ObjectReader::number(std::string_view key, double fallback, NumberRange range) {
  const Json* value = given(key);
  std::optional<double> number;
  if (value != nullptr) number = asNumber(*value, range);
  if (value != nullptr && !number) wrong(pathOf(key), describeRange(range), *value);
  record(key, number ? *value : Json(fallback), number.value_or(fallback) == fallback);
  return number.value_or(fallback);
}

uint64_t ObjectReader::integer(std::string_view key, uint64_t fallback, uint64_t min, uint64_t max,
                               std::string_view right) {
  const Json* value = given(key);
  std::optional<uint64_t> integer;
  if (value != nullptr) integer = asInteger(*value, min, max);
  if (value != nullptr && !integer) {
    wrong(pathOf(key), right.empty() ? describeIntegers(min, max) : right, *value);
  }
  record(key, integer.value_or(fallback), integer.value_or(fallback) == fallback);
  if (!right.empty()) alwaysOffDefault(key);
  return integer.value_or(fallback);
}

bool ObjectReader::boolean(std::string_view key, bool fallback) {
  const Json* value = given(key);
  bool usable = value != nullptr && value->is_boolean();
  if (value != nullptr && !usable) wrong(pathOf(key), "true or false", *value);
  bool result = usable ? value->get<bool>() : fallback;
  record(key, result, result == fallback);
  return result;
}

std::string ObjectReader::text(std::string_view key, std::string_view fallback) {
  const Json* value = given(key);
  std::optional<std::string> text;
  if (value != nullptr) text = asText(*value);
  if (value != nullptr && !text) wrong(pathOf(key), "a string", *value);
  std::string result = text ? std::move(*text) : std::string(fallback);
  record(key, result, result == fallback);
  return result;
}

std::string ObjectReader::path(std::string_view key, std::string_view fallback) {
  std::string path = text(key, fallback);
  if (path.find('\0') != std::string::npos) wrong(pathOf(key), "a path without zero bytes", path);
  return path;
}

template <class T, class Check>
std::vector<T> ObjectReader::list(std::string_view key, std::vector<T> fallback, const std::string& right,
                                  Check check) {
  std::vector<T> result = fallback;
  if (const Json* value = given(key); value != nullptr && !value->is_array()) {
    wrong(pathOf(key), "a list", *value);
  } else if (value != nullptr) {
    result.clear();
    for (size_t i = 0; i < value->size(); i++) {
      std::optional<T> element = check((*value)[i]);
      if (element) {
        result.push_back(std::move(*element));
      } else {
        wrong(pathOf(key) + "[" + std::to_string(i) + "]", right, (*value)[i]);
      }
    }
  }
  record(key, result, result == fallback);
  return result;
}

std::vector<std::string> ObjectReader::texts(std::string_view key, std::vector<std::string> fallback) {
  return list(key, std::move(fallback), "a string", asText);
}

std::vector<std::string> ObjectReader::textOrTexts(std::string_view key) {
  const Json* value = given(key);
  if (value == nullptr || value->is_array()) return texts(key, {});
  const std::optional<std::string> text = asText(*value);
  if (!text) wrong(pathOf(key), "a string or a list of strings", *value);
  std::vector<std::string> result;
  if (text) result.push_back(*text);
  record(key, result, result.empty());
  return result;
}

std::vector<uint64_t> ObjectReader::integers(std::string_view key, std::vector<uint64_t> fallback) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  return list(key, std::move(fallback), describeIntegers(0, kMax),
              [](const Json& value) { return asInteger(value, 0, kMax); });
}

std::vector<double> ObjectReader::numbers(std::string_view key, std::vector<double> fallback,
                                          NumberRange range) {
  return list(key, std::move(fallback), describeRange(range),
              [&](const Json& value) { return asNumber(value, range); });
}

std::string ObjectReader::choice(std::string_view key, std::string_view fallback,
                                 const std::vector<std::string_view>& allowed) {
  std::string result(fallback);
  if (key == "type" && node_->instead != nullptr) state_->suggestType(*node_, allowed);
  if (const Json* value = given(key); value != nullptr) {
    const auto isOption = [value](std::string_view option) { return *value == option; };
    if (std::any_of(allowed.begin(), allowed.end(), isOption)) {
      result = value->get<std::string>();
    } else {
      const auto quoted = [](std::string_view option) { return "\"" + std::string(option) + "\""; };
      const std::string right = (allowed.size() > 1 ? "one of " : "") + joined(allowed, ", ", quoted);
      std::string_view near = value->is_string() ? nearest(value->get<std::string>(), allowed) : "";
      wrong(pathOf(key), right, *value, near.empty() ? "" : "; did you mean \"" + std::string(near) + "\"?");
    }
  }
  record(key, result, result == fallback);
  return result;
}

ObjectReader ObjectReader::object(std::string_view key, std::string_view right) {
  const Json* value = given(key);
  Entry& entry = node_->entry(key);
  if (entry.kind == Entry::Kind::object) return {state_, entry.children[0]};
  bool usable = value != nullptr && value->is_object();
  Node* child = state_->makeNode(usable ? value : nullptr, pathOf(key));
  if (value != nullptr && !usable) {
    if (!state_->wrong) state_->wrongNode = child;
    wrong(pathOf(key), right, *value);
  }
  child->instead = usable ? nullptr : value;
  entry.kind = Entry::Kind::object;
  entry.children = {child};
  return {state_, child};
}

std::vector<ObjectReader> ObjectReader::objects(std::string_view key) {
  const Json* value = given(key);
  Entry& entry = node_->entry(key);
  if (entry.kind != Entry::Kind::list) {
    entry.kind = Entry::Kind::list;
    bool usable = value != nullptr && value->is_array();
    if (value != nullptr && !usable) wrong(pathOf(key), "a list of objects", *value);
    for (size_t i = 0; usable && i < value->size(); i++) {
      const Json& element = (*value)[i];
      std::string path = pathOf(key) + "[" + std::to_string(i) + "]";
      if (!element.is_object()) wrong(path, "an object", element);
      entry.children.push_back(state_->makeNode(element.is_object() ? &element : nullptr, path));
    }
  }
  std::vector<ObjectReader> readers;
  for (Node* child : entry.children) readers.push_back({state_, child});
  return readers;
}

void ObjectReader::refuse(std::string_view key, std::string_view message) {
  if (has(key)) fail(key, message);
  node_->entry(key).kind = Entry::Kind::refused;
}

void ObjectReader::fail(std::string_view key, std::string_view message) {
  if (state_->failed) return;
  std::string path = pathOf(key);
  state_->failed = (path.empty() ? "" : path + ": ") + std::string(message);
}

std::string ObjectReader::pathOf(std::string_view key) const {
  if (key.empty() || node_->path.empty()) return node_->path + std::string(key);
  return node_->path + "." + std::string(key);
}

Status ObjectReader::finish() const {
  std::string message;
  if (state_->wrong) {
    message = *state_->wrong;
  } else if (std::string unknown = state_->nodes.front().unknownKey(); !unknown.empty()) {
    message = std::move(unknown);
  } else if (state_->failed) {
    message = *state_->failed;
  } else {
    return {};
  }
  return {ErrorCode::invalidArgument, std::move(message)};
}

Json ObjectReader::effective() const { return state_->nodes.front().effective(); }

std::vector<std::string> ObjectReader::offDefault() const {
  std::vector<std::string> paths;
  state_->nodes.front().addOffDefault(paths);
  return paths;
}

}  // namespace psd

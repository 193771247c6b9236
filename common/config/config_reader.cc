#include "common/config/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/config/globs.h"
#include "common/text/text.h"

namespace psd {

using Json = nlohmann::ordered_json;

/// What is declared of one object.
struct ConfigReader::Object {
  struct Member {
    std::string name;
    Json schema;                       ///< of a value, or what is said of an object or list beside its keys
    std::shared_ptr<Object> object{};  ///< of an object, or of each in a list
    bool list = false;
  };
  std::vector<Member> members{};
  std::vector<std::string> required{};
  Json rules = Json::object();
  std::vector<std::shared_ptr<Object>> alternatives{};
  Json others = Json::array();  ///< schemas of what may stand in place of the object

  Json schema() const {
    Json out = Json::object();
    if (!alternatives.empty()) {
      for (const auto& one : alternatives) out["oneOf"].push_back(one->schema());
    } else {
      out = closed();
      if (others.empty()) return out;
      out = Json{{"oneOf", Json::array({std::move(out)})}};
    }
    for (const Json& other : others) out["oneOf"].push_back(other);
    return out;
  }

 private:
  Json closed() const {
    Json out = rules;
    out["type"] = "object";
    out["additionalProperties"] = false;
    if (!required.empty()) out["required"] = required;
    Json& properties = out["properties"] = Json::object();
    for (const Member& member : members) {
      Json& schema = properties[member.name] = member.schema;
      if (!member.object) continue;
      if (member.list) {
        schema["type"] = "array";
        schema["items"] = member.object->schema();
        schema["default"] = Json::array();
      } else {
        schema.update(member.object->schema());
      }
    }
    return out;
  }
};

namespace {

Json describeKey(const Key& key) {
  Json schema = Json::object();
  schema["description"] = key.text;
  if ((key.flags & Key::kLive) != 0) schema["x-live"] = true;
  if ((key.flags & Key::kOfDaemon) != 0) schema["x-of-daemon"] = true;
  return schema;
}

Json withDefault(const Key& key, Json schema, const Json& value) {
  if ((key.flags & Key::kNoDefault) == 0) schema["default"] = value;
  return schema;
}

Json numberSchema(const NumberRange& range) {
  Json schema{{"type", "number"}};
  if (std::isfinite(range.min)) schema[range.minExclusive ? "exclusiveMinimum" : "minimum"] = range.min;
  if (std::isfinite(range.max)) schema[range.maxExclusive ? "exclusiveMaximum" : "maximum"] = range.max;
  return schema;
}

Json integerSchema(uint64_t min, uint64_t max) {
  Json schema{{"type", "integer"}, {"minimum", min}};
  if (max != std::numeric_limits<uint64_t>::max()) schema["maximum"] = max;
  return schema;
}

Json listSchema(Json items, const Json& more) {
  Json schema{{"type", "array"}, {"items", std::move(items)}};
  schema.merge_patch(more.is_null() ? Json::object() : more);
  return schema;
}

}  // namespace

ConfigReader::ConfigReader(ObjectReader in) : in_(std::move(in)) {}
ConfigReader::ConfigReader(std::shared_ptr<Object> object) : object_(std::move(object)) {}
ConfigReader ConfigReader::describing() { return ConfigReader(std::make_shared<Object>()); }
Json ConfigReader::schema() const { return object_->schema(); }

void ConfigReader::declare(const Key& key, const Json& schema) {
  if (!object_) return;
  Json whole = describeKey(key);
  whole.update(schema);
  object_->members.push_back({std::string(key.name), std::move(whole)});
}

void ConfigReader::number(const Key& key, double& value, NumberRange range, const Json& more) {
  if (in_) value = in_->number(key.name, value, range);
  Json schema = numberSchema(range);
  if (!more.is_null()) schema.update(more);
  declare(key, withDefault(key, std::move(schema), value));
}

void ConfigReader::number(const Key& key, std::optional<double>& value, NumberRange range) {
  if (has(key.name)) {
    value = in_->number(key.name, value.value_or(0), range);
    in_->alwaysOffDefault(key.name);
  }
  declare(key, numberSchema(range));
}

uint64_t ConfigReader::readInteger(const Key& key, uint64_t fallback, uint64_t min, uint64_t max,
                                   const Json& more) {
  if (in_) return in_->integer(key.name, fallback, min, max);
  Json schema = integerSchema(min, max);
  if (!more.is_null()) schema.update(more);
  declare(key, withDefault(key, std::move(schema), fallback));
  return fallback;
}

std::optional<uint64_t> ConfigReader::readOptionalInteger(const Key& key, uint64_t min, uint64_t max) {
  if (has(key.name)) {
    in_->alwaysOffDefault(key.name);
    return in_->integer(key.name, min, min, max);
  }
  declare(key, integerSchema(min, max));
  return {};
}

void ConfigReader::boolean(const Key& key, bool& value) {
  if (in_) value = in_->boolean(key.name, value);
  declare(key, withDefault(key, {{"type", "boolean"}}, value));
}

void ConfigReader::text(const Key& key, std::string& value, const Json& more) {
  if (in_) value = in_->text(key.name, value);
  Json schema{{"type", "string"}};
  if (!more.is_null()) schema.update(more);
  declare(key, withDefault(key, std::move(schema), value));
}

void ConfigReader::path(const Key& key, std::string& value, const Json& more) {
  if (in_) value = in_->path(key.name, value);
  Json schema{{"type", "string"}, {"pattern", "^[^\\u0000]*$"}};
  if (!more.is_null()) schema.update(more);
  declare(key, withDefault(key, std::move(schema), value));
}

void ConfigReader::texts(const Key& key, std::vector<std::string>& value, const Json& more) {
  if (in_) value = in_->texts(key.name, std::move(value));
  declare(key, withDefault(key, listSchema({{"type", "string"}}, more), value));
}

void ConfigReader::integers(const Key& key, std::vector<uint64_t>& value, const Json& more) {
  if (in_) value = in_->integers(key.name, std::move(value));
  declare(key, withDefault(key, listSchema({{"type", "integer"}}, more), value));
}

void ConfigReader::numbers(const Key& key, std::array<double, 2>& values, NumberRange range) {
  declare(key, withDefault(key, listSchema(numberSchema(range), {{"minItems", 2}, {"maxItems", 2}}), values));
  if (!in_) return;
  const auto given = in_->numbers(key.name, {values[0], values[1]}, range);
  if (given.size() == values.size()) {
    values = {given[0], given[1]};
  } else {
    in_->fail(key.name, "must hold 2 numbers, not " + std::to_string(given.size()));
  }
}

void ConfigReader::globs(const Key& key, std::vector<std::string>& value) {
  if (in_) value = readGlobs(*in_, key.name);
  declare(key, {{"type", {"string", "array"}}, {"items", {{"type", "string"}}}, {"default", Json::array()}});
}

void ConfigReader::match(const Key& key, std::vector<std::string>& value, const std::string& what) {
  declare(key, {{"type", {"string", "array"}}, {"items", {{"type", "string"}}}, {"minItems", 1}});
  if (object_) object_->required.emplace_back(key.name);
  if (!in_) return;
  value = readGlobs(*in_, key.name);
  if (value.empty()) in_->fail(key.name, "is needed: " + what);
}

std::string ConfigReader::readChoice(const Key& key, std::string_view fallback,
                                     const std::vector<std::string_view>& names) {
  if (in_) return in_->choice(key.name, fallback, names);
  declare(key, {{"enum", names}, {"default", fallback}});
  return std::string(fallback);
}

void ConfigReader::alternatives(const Key& key, std::string_view fallback,
                                const std::vector<Alternative>& known, const ReadAlternative& read) {
  if (in_) {
    std::vector<std::string_view> names;
    for (const Alternative& one : known) names.push_back(one.name);
    if (fallback.empty() && !has(key.name)) {
      const auto quoted = [](std::string_view name) { return "\"" + std::string(name) + "\""; };
      const std::vector<std::string_view> first(names.begin(), names.end() - 1);
      fail(key.name, "is needed: " + joined(first, ", ", quoted) + " or " + quoted(names.back()));
    }
    if (fallback.empty()) in_->alwaysOffDefault(key.name);
    read(*this, in_->choice(key.name, fallback.empty() ? names.front() : fallback, names));
    return;
  }
  for (const Alternative& one : known) {
    ConfigReader branch = describing();
    Object& object = *branch.object_;
    if (!one.text.empty()) object.rules["title"] = one.text;
    Json chosen{{"const", one.name}};
    if (one.name == fallback) {
      chosen["default"] = one.name;
    } else {
      object.required.emplace_back(key.name);
    }
    branch.declare(key, chosen);
    object_->alternatives.push_back(branch.object_);
    if (one.name != fallback) read(branch, one.name);
  }
  // Last, so that what `read` leaves behind is the default.
  for (size_t i = 0; i < known.size(); i++) {
    if (known[i].name != fallback) continue;
    ConfigReader branch(object_->alternatives[object_->alternatives.size() - known.size() + i]);
    read(branch, fallback);
  }
}

ConfigReader ConfigReader::object(const Key& key, std::string_view right) {
  if (in_) return in_->object(key.name, right);
  ConfigReader below = describing();
  object_->members.push_back({std::string(key.name), describeKey(key), below.object_});
  return below;
}

std::optional<ConfigReader> ConfigReader::optionalObject(const Key& key) {
  if (in_ && !in_->has(key.name)) return std::nullopt;
  return object(key);
}

std::vector<ConfigReader> ConfigReader::objects(const Key& key) {
  if (!in_) {
    ConfigReader entry = object(key);
    object_->members.back().list = true;
    return {std::move(entry)};
  }
  const std::vector<ObjectReader> readers = in_->objects(key.name);
  return {readers.begin(), readers.end()};
}

void ConfigReader::require(std::string_view key, std::string_view message) {
  if (object_) {
    object_->required.emplace_back(key);
    for (Object::Member& member : object_->members) {
      if (member.name == key) member.schema.erase("default");
    }
  } else {
    in_->alwaysOffDefault(key);
    if (!in_->has(key)) in_->fail(key, message);
  }
}

void ConfigReader::rule(const Json& keywords) {
  if (object_) object_->rules.update(keywords);
}

void ConfigReader::orElse(const Json& schema) {
  if (object_) object_->others.push_back(schema);
}

void ConfigReader::refuse(std::string_view key, std::string_view message) {
  if (in_) in_->refuse(key, message);
}

void ConfigReader::fail(std::string_view key, std::string_view message) {
  if (in_) in_->fail(key, message);
}

}  // namespace psd

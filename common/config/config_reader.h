#pragma once

#include <array>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/config/object_reader.h"

namespace psd {

/// What a configuration declares of a key beside its type, bounds and default.
struct Key {
  std::string_view name;
  /// What the key does, in plain sentences, for editors and docs/reference/configuration.md. Backticks
  /// mark code.
  std::string_view text;
  unsigned flags = 0;

  static constexpr unsigned kLive = 1;       ///< may change while the daemon runs, with all keys in it
  static constexpr unsigned kOfDaemon = 2;   ///< each daemon has its own value; all others rule the model
  static constexpr unsigned kNoDefault = 4;  ///< none, or one that depends on the machine or other keys
};

/// One set of keys that an object may have, chosen by the value of one key.
struct Alternative {
  std::string_view name;  ///< the value
  std::string_view text;
};

/// Declares the keys of one JSON object and reads them: a call states name, text, type and bounds of a key,
/// and its argument holds the default and receives the value. The same calls serve two purposes.
///
/// A reader of a document gives each value what the document has; problems are collected as by ObjectReader,
/// whose state it shares. A reader made by describing() leaves all values as they are, finds no key given,
/// ignores problems, and records every declaration, of all alternatives and absent objects too: schema() is
/// the result. Code that reads a configuration therefore reads optional keys through std::optional values,
/// optionalObject() and alternatives(), so that their declarations are reached.
///
/// Owned by one thread; cheap to copy.
class ConfigReader {
 public:
  using Json = nlohmann::ordered_json;
  using ReadAlternative = std::function<void(ConfigReader& in, std::string_view name)>;

  ConfigReader(ObjectReader in);  // NOLINT(google-explicit-constructor): one reads what the other does
  static ConfigReader describing();
  bool describes() const { return object_ != nullptr; }
  /// The JSON Schema of the object. Of describing() alone.
  Json schema() const;

  /// Each reads one key. An optional value is read where the key is given. `more` has keywords of JSON Schema
  /// that the caller checks itself.
  void number(const Key& key, double& value, NumberRange range, const Json& more = {});
  void number(const Key& key, std::optional<double>& value, NumberRange range);
  template <std::unsigned_integral T>
  void integer(const Key& key, T& value, uint64_t min, uint64_t max, const Json& more = {}) {
    value = static_cast<T>(readInteger(key, value, min, max, more));
  }
  template <std::unsigned_integral T>
  void integer(const Key& key, std::optional<T>& value, uint64_t min, uint64_t max) {
    const auto found = readOptionalInteger(key, min, max);
    if (found) value = static_cast<T>(*found);
  }
  template <class Rep, class Period>
  void integer(const Key& key, std::chrono::duration<Rep, Period>& value, uint64_t min, uint64_t max) {
    value = std::chrono::duration<Rep, Period>(
        static_cast<Rep>(readInteger(key, static_cast<uint64_t>(value.count()), min, max, {})));
  }
  void boolean(const Key& key, bool& value);
  void text(const Key& key, std::string& value, const Json& more = {});
  void path(const Key& key, std::string& value, const Json& more = {});
  void texts(const Key& key, std::vector<std::string>& value, const Json& more = {});
  void integers(const Key& key, std::vector<uint64_t>& value, const Json& more = {});
  void numbers(const Key& key, std::array<double, 2>& values, NumberRange range);
  /// Globs over names, as one string or a list.
  void globs(const Key& key, std::vector<std::string>& value);
  /// Required globs over names, as one string or a list of at least one; `what` completes the error if the
  /// key is absent.
  void match(const Key& key, std::vector<std::string>& value, const std::string& what);

  /// One of several names, each with the value that it stands for.
  template <class T>
  void choice(const Key& key, T& value, const std::vector<std::pair<std::string_view, T>>& names) {
    std::vector<std::string_view> texts;
    std::string_view fallback;
    for (const auto& [name, meaning] : names) {
      texts.push_back(name);
      if (meaning == value) fallback = name;
    }
    const std::string chosen = readChoice(key, fallback, texts);
    for (const auto& [name, meaning] : names) {
      if (name == chosen) value = meaning;
    }
  }
  /// Reads the key that chooses among alternatives, and by `read` all other keys of the object. An empty
  /// fallback makes it a required key.
  void alternatives(const Key& key, std::string_view fallback, const std::vector<Alternative>& known,
                    const ReadAlternative& read);

  /// The object below a key; an absent one has all defaults, or is nothing. `right`: what the value must be,
  /// for the error, where other forms are right too; see orElse().
  ConfigReader object(const Key& key, std::string_view right = "an object");
  std::optional<ConfigReader> optionalObject(const Key& key);
  /// The objects of a list.
  std::vector<ConfigReader> objects(const Key& key);

  /// The key must be given; `message` is the error where it is not.
  void require(std::string_view key, std::string_view message);
  /// Adds keywords of JSON Schema to that of the object, for a rule that the caller checks.
  void rule(const Json& keywords);
  /// Declares a key that the caller reads by values(), for types that have no call here.
  void declare(const Key& key, const Json& schema);
  /// Declares what the object may be in place of an object; see declare().
  void orElse(const Json& schema);
  /// The document's values. Not of describing().
  ObjectReader& values() { return *in_; }

  bool has(std::string_view key) const { return in_ && in_->has(key); }
  bool hasObject(std::string_view key) const { return in_ && in_->hasObject(key); }
  bool hasText(std::string_view key) const { return in_ && in_->hasText(key); }
  void refuse(std::string_view key, std::string_view message);
  void fail(std::string_view key, std::string_view message);

 private:
  struct Object;
  explicit ConfigReader(std::shared_ptr<Object> object);

  uint64_t readInteger(const Key& key, uint64_t fallback, uint64_t min, uint64_t max, const Json& more);
  std::optional<uint64_t> readOptionalInteger(const Key& key, uint64_t min, uint64_t max);
  std::string readChoice(const Key& key, std::string_view fallback,
                         const std::vector<std::string_view>& names);

  std::optional<ObjectReader> in_;  ///< of a document
  std::shared_ptr<Object> object_;  ///< of describing()
};

}  // namespace psd

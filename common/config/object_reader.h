#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/status/status.h"

namespace psd {

/// The numbers that a key may have. Bounds are inclusive unless stated otherwise.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool minExclusive = false;
  bool maxExclusive = false;
};

/// Reads one JSON object key by key into typed values.
///
/// A wrong type or value is recorded with its JSON path and the fallback is returned; `finish()` on the root
/// reports one problem in one line: the first wrong value, else the first key that was never read, with the
/// nearest valid one, else the first `fail()`. (In this order, because a misspelt key is often the reason why
/// another one seems to be missing.) Each value read, given or default, is recorded, so that `effective()` is
/// the complete document in reading order.
///
/// Readers made by `object()` and `objects()` share the root's state and keep it alive. Owned by one thread;
/// cheap to copy.
class ObjectReader {
 public:
  /// `json` must be an object; anything else is the first error.
  explicit ObjectReader(nlohmann::ordered_json json);

  bool has(std::string_view key) const;
  /// Whether the document has an object at `key`.
  bool hasObject(std::string_view key) const;
  /// Whether it is a string.
  bool hasText(std::string_view key) const;
  /// The document's keys of this object, in their order, where they are names.
  std::vector<std::string> keys() const;
  double number(std::string_view key, double fallback, NumberRange range = {});
  /// `right`: what the value must be, for the error, where other forms are right too, one of which is the
  /// default.
  uint64_t integer(std::string_view key, uint64_t fallback, uint64_t min, uint64_t max,
                   std::string_view right = {});
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// A string without zero bytes.
  std::string path(std::string_view key, std::string_view fallback);
  std::vector<std::string> texts(std::string_view key, std::vector<std::string> fallback);
  /// A list of strings, or one string for a list of one; absent: empty.
  std::vector<std::string> textOrTexts(std::string_view key);
  std::vector<uint64_t> integers(std::string_view key, std::vector<uint64_t> fallback);
  std::vector<double> numbers(std::string_view key, std::vector<double> fallback, NumberRange range = {});
  /// A string that must be one of `allowed`; the error lists them and suggests the nearest.
  std::string choice(std::string_view key, std::string_view fallback,
                     const std::vector<std::string_view>& allowed);
  /// The object below `key`; an absent one reads as an empty object (all defaults). `right`: what
  /// the value must be, for the error, where other forms are right too.
  ObjectReader object(std::string_view key, std::string_view right = "an object");
  /// The objects of the list below `key`; an absent one reads as no objects.
  std::vector<ObjectReader> objects(std::string_view key);

  /// A key that does not apply to this object, though to similar ones: a problem where it is given, and not
  /// listed among the valid keys.
  void refuse(std::string_view key, std::string_view message);
  /// Lists the key in offDefault() whatever its value is: its default is to have none.
  void alwaysOffDefault(std::string_view key);
  /// Reports a problem that the caller found. `key` may be empty: the object itself.
  void fail(std::string_view key, std::string_view message);
  /// JSON path of this object ("" for the root) or of a key in it, as "optimizer.lr" or
  /// "groups[1].match".
  std::string pathOf(std::string_view key) const;

  /// The problem to report (ErrorCode::invalidArgument), or ok. Called after all keys were read.
  Status finish() const;
  /// Every value that was read from the root down, in reading order.
  nlohmann::ordered_json effective() const;
  /// The paths of the keys of effective() that it would have otherwise, or not at all, if they were left out,
  /// such as "optimizer.lr". A list is one key.
  std::vector<std::string> offDefault() const;

 private:
  struct Entry;
  struct Node;
  struct State;
  ObjectReader(std::shared_ptr<State> state, Node* node);

  /// The value given for `key`, or null; marks the key as known.
  const nlohmann::ordered_json* given(std::string_view key) const;
  /// Records the value of `key` for effective(); `isDefault`: it is the fallback.
  void record(std::string_view key, nlohmann::ordered_json value, bool isDefault);
  /// Records that the value at `path` is not `right`.
  void wrong(const std::string& path, std::string_view right, const nlohmann::ordered_json& value,
             const std::string& hint = "");
  template <class T, class Check>
  std::vector<T> list(std::string_view key, std::vector<T> fallback, const std::string& right, Check check);

  std::shared_ptr<State> state_;
  Node* node_;  ///< owned by state_
};

}  // namespace psd

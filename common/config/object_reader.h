#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/status/status.h"

namespace psd {

/// The numbers that a key may hold. Bounds are inclusive unless said otherwise.
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool minExclusive = false;
  bool maxExclusive = false;
};

/// Reads one JSON object key by key into typed values.
///
/// Reading never fails on the spot: a wrong type or value is remembered with its JSON path, the
/// fallback is returned, and `finish()` on the root reports the first problem in one line. `finish()`
/// also reports every key that nobody asked for, with the nearest one that exists. Each value read, given or
/// default, is recorded, so that `effective()` is the complete configuration in reading order.
///
/// Children (`object()`) share the root's state. Owned by one thread; cheap to copy.
class ObjectReader {
 public:
  /// `json` must be an object; anything else is the first error. The value is copied.
  explicit ObjectReader(nlohmann::ordered_json json);

  bool has(std::string_view key) const;
  double number(std::string_view key, double fallback, NumberRange range = {});
  uint64_t integer(std::string_view key, uint64_t fallback, uint64_t min, uint64_t max);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  std::vector<std::string> texts(std::string_view key, std::vector<std::string> fallback);
  std::vector<uint64_t> integers(std::string_view key, std::vector<uint64_t> fallback);
  std::vector<double> numbers(std::string_view key, std::vector<double> fallback,
                              NumberRange range = {});
  /// A string that must be one of `allowed`; the error lists them and suggests the nearest.
  std::string choice(std::string_view key, std::string_view fallback,
                     const std::vector<std::string_view>& allowed);
  /// The object below `key`; an absent one reads as an empty object (all defaults).
  ObjectReader object(std::string_view key);
  /// The objects of the array below `key`; an absent one reads as no objects.
  std::vector<ObjectReader> objects(std::string_view key);

  /// Reports a problem that only the caller can see. `key` may be empty: the object itself.
  void fail(std::string_view key, std::string_view message);
  /// JSON path of this object ("" for the root) or of a key in it, as "optimizer.lr" or "groups[1].match".
  std::string pathOf(std::string_view key) const;

  /// For the root, after all keys were read: the first error (ErrorCode::invalidArgument), or ok.
  Status finish();
  /// For the root: every value that was read, in order.
  const nlohmann::ordered_json& effective() const;

 private:
  struct State;
  struct Node;
  ObjectReader(std::shared_ptr<State> state, Node* node);
  std::shared_ptr<State> state_;
  Node* node_;
};

}  // namespace psd

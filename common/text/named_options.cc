#include "common/text/named_options.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/text/number.h"
#include "common/text/text.h"

namespace psd {

NamedOptions::NamedOptions(std::string_view what, std::string_view name, std::string_view text)
    : what_(what), name_(name), spec_(name) {
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      problem("'" + printable(item) + "' is not an option; expected NAME=VALUE");
      continue;
    }
    given_.push_back({item.substr(0, equals), item.substr(equals + 1)});
  }
}

void NamedOptions::problem(std::string message) {
  if (problem_.empty()) problem_ = std::move(message);
}

const std::string_view* NamedOptions::take(std::string_view key) {
  known_.push_back(key);
  const auto option =
      std::find_if(given_.begin(), given_.end(), [key](const Option& each) { return each.key == key; });
  if (option == given_.end()) return nullptr;
  if (option->read) problem(std::string(key) + " is given twice");
  option->read = true;
  return &option->value;
}

void NamedOptions::keep(std::string_view key, std::string_view value) {
  spec_ += fmt::format("{}{}={}", known_.size() == 1 ? ":" : ",", key, value);
}

template <class Number>
Number NamedOptions::numberFrom(std::string_view key, Number fallback, Number min, Number max,
                                const char* kind) {
  Number value = fallback;
  if (const std::string_view* text = take(key)) {
    const auto given = toNumber<Number>(*text);
    if (given && *given >= min && *given <= max) {
      value = *given;
    } else {
      problem(fmt::format("{} must be a {} from {} to {}, not '{}'", key, kind, min, max, printable(*text)));
    }
  }
  keep(key, fmt::format("{}", value));
  return value;
}

double NamedOptions::number(std::string_view key, double fallback, double min, double max) {
  return numberFrom(key, fallback, min, max, "number");
}

uint64_t NamedOptions::count(std::string_view key, uint64_t fallback, uint64_t min, uint64_t max) {
  return numberFrom(key, fallback, min, max, "whole number");
}

std::string_view NamedOptions::word(std::string_view key, const std::vector<std::string_view>& words) {
  std::string_view chosen = words.front();
  if (const std::string_view* text = take(key)) {
    if (std::count(words.begin(), words.end(), *text) > 0) {
      chosen = *text;
    } else {
      problem(fmt::format("{} must be {}, not '{}'", key, joined(words, " or "), printable(*text)));
    }
  }
  keep(key, chosen);
  return chosen;
}

Status NamedOptions::finish() const {
  std::string message = problem_;
  for (const Option& option : given_) {
    if (!message.empty() || option.read) continue;
    message = "'" + printable(option.key) + "' is not an option" +
              (known_.empty() ? "; there are none" : "; expected " + joined(known_, ", "));
    if (std::count(known_.begin(), known_.end(), option.key) > 0) {
      message = std::string(option.key) + " is given twice";
    }
  }
  if (message.empty()) return {};
  return {ErrorCode::invalidArgument, fmt::format("{} '{}': {}", what_, name_, message)};
}

}  // namespace psd

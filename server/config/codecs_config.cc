#include "server/config/codecs_config.h"

#include <algorithm>

#include "common/text/split.h"
#include "common/text/text.h"
#include "server/config/addresses.h"

namespace psd {
namespace {

/// A number from 0 to 1, which all options of codecs are.
constexpr std::string_view kNumberPattern =
    R"(=\+?(0+(\.[0-9]*)?|\.[0-9]+|0*1(\.0*)?|[0-9]+(\.[0-9]*)?[eE]-[0-9]+))";

/// A pattern for some of the options, each at most once, after `before`.
std::string optionsPattern(const std::vector<std::string>& options, std::string_view before) {
  if (options.empty()) return "";
  return "(" + std::string(before) + "(" +
         joined(options, "|",
                [&](const std::string& first) {
                  std::vector<std::string> others = options;
                  std::erase(others, first);
                  return first + std::string(kNumberPattern) + optionsPattern(others, ",");
                }) +
         "))?";
}

/// Keywords of JSON Schema for the name of a codec with options; each codec with all its options is an
/// example.
nlohmann::ordered_json specSchema(const std::vector<std::string>& names) {
  std::vector<std::string> examples, patterns;
  for (const std::string& name : names) {
    examples.push_back(makeCodec(name).value()->spec());
    std::vector<std::string> options;
    if (examples.back() != name) options = splitAtCommas(examples.back().substr(name.size() + 1));
    for (std::string& option : options) option.resize(option.find('='));
    patterns.push_back(name + optionsPattern(options, ":"));
  }
  return {{"pattern", "^(" + joined(patterns, "|") + ")$"}, {"examples", examples}};
}

CodecRule readRule(ConfigReader in, const std::vector<std::string_view>& known) {
  CodecRule rule;
  const std::vector<std::string> all(known.begin(), known.end());
  rule.allowed = all;
  in.texts(
      {"allowed", "Codecs that trainers may request; the join of a trainer with another one is refused."},
      rule.allowed, {{"items", {{"enum", all}}}, {"minItems", 1}, {"uniqueItems", true}});
  if (rule.allowed.empty()) in.fail("allowed", "must hold at least one of " + joined(all, ", "));
  for (size_t i = 0; i < rule.allowed.size(); i++) {
    const std::string& name = rule.allowed[i];
    const std::string at = elementPath("allowed", i);
    if (std::count(all.begin(), all.end(), name) == 0) {
      in.fail(at, "must be one of " + joined(all, ", ") + ", not \"" + name + "\"");
    } else if (std::count(rule.allowed.begin(), rule.allowed.end(), name) > 1) {
      in.fail(at, "\"" + name + "\" is listed twice");
    }
  }
  in.text({"default", "Codec of trainers that request none: `NAME[:option=value]`, one of those allowed."},
          rule.fallback, in.describes() ? specSchema(all) : nlohmann::ordered_json());
  const auto codec = rule.choose("");
  if (!codec.ok()) in.fail("default", codec.message());
  return rule;
}

}  // namespace

Result<std::shared_ptr<const Codec>> CodecRule::choose(std::string_view spec) const {
  PSD_ASSIGN_OR_RETURN(std::shared_ptr<const Codec> codec, makeCodec(spec.empty() ? fallback : spec));
  if (std::count(allowed.begin(), allowed.end(), codec->name()) > 0) return codec;
  return Error{ErrorCode::invalidArgument, "codec '" + std::string(codec->name()) +
                                               "' is not allowed here; allowed: " + joined(allowed, ", ")};
}

Status checkPushCodec(const Codec& codec, const std::vector<GroupConfig>& groups) {
  if (!codec.addsMomentum()) return {};
  for (const GroupConfig& group : groups) {
    const bool local = group.policy.plan.local.has_value();
    if (!local && !group.optimizer.hasMomentum()) continue;
    return {ErrorCode::invalidArgument,
            "codec '" + codec.spec() + "' has a momentum, which cannot be combined with " +
                (local ? "policy '" + group.policy.type + "', whose trainers push no gradients"
                       : "that of optimizer '" + group.optimizer.describe() + "'") +
                "; " + std::string(codec.name()) + ":momentum=0 works with any"};
  }
  return {};
}

CodecsConfig readCodecs(ConfigReader in) {
  CodecsConfig codecs;
  codecs.push = readRule(in.object({"push", "Gradients (`psd-trainer --codec`)."}), codecNames());
  codecs.pull =
      readRule(in.object({"pull", "Parameters (`psd-trainer --pull-codec`)."}), parameterCodecNames());
  return codecs;
}

}  // namespace psd

#include "server/config/codecs_config.h"

#include <algorithm>

#include "common/text/text.h"

namespace psd {
namespace {

CodecRule readRule(ObjectReader in, const std::vector<std::string_view>& known) {
  CodecRule rule;
  const std::vector<std::string> all(known.begin(), known.end());
  rule.allowed = in.texts("allowed", all);
  if (rule.allowed.empty()) in.fail("allowed", "must hold at least one of " + joined(all, ", "));
  for (size_t i = 0; i < rule.allowed.size(); i++) {
    const std::string& name = rule.allowed[i];
    const std::string at = "allowed[" + std::to_string(i) + "]";
    if (std::count(all.begin(), all.end(), name) == 0) {
      in.fail(at, "must be one of " + joined(all, ", ") + ", not \"" + name + "\"");
    } else if (std::count(rule.allowed.begin(), rule.allowed.end(), name) > 1) {
      in.fail(at, "\"" + name + "\" is listed twice");
    }
  }
  rule.fallback = in.text("default", "none");
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
            "codec '" + codec.spec() + "' has a momentum, which does not go with " +
                (local ? "policy '" + group.policy.type + "', whose trainers push no gradients"
                       : "that of optimizer '" + group.optimizer.describe() + "'") +
                "; " + std::string(codec.name()) + ":momentum=0 goes with any"};
  }
  return {};
}

CodecsConfig readCodecs(ObjectReader in) {
  CodecsConfig codecs;
  codecs.push = readRule(in.object("push"), codecNames());
  codecs.pull = readRule(in.object("pull"), parameterCodecNames());
  return codecs;
}

}  // namespace psd

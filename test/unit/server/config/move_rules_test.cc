#include "server/config/move_rules.h"

#include <string>

#include "server/config/agreed_codecs.h"
#include "test/support/catch.h"

namespace psd::move_rules_test {
namespace {

DaemonConfig configOf(const std::string& text) {
  auto loaded = readDaemonConfig(nlohmann::ordered_json::parse(text));
  PSD_REQUIRE_OK(loaded);
  return loaded->config;
}

/// Why a model cannot move from one configuration to another; empty: it can.
std::string between(const std::string& before, const std::string& here) {
  const Status status = checkMoveRules(moveRules(configOf(before).groups), moveRules(configOf(here).groups));
  if (status.ok()) return "";
  CHECK(status.error().code == ErrorCode::invalidArgument);
  const std::string begin = "its configuration differs from that of the previous daemons: ";
  REQUIRE(status.message().starts_with(begin));
  return status.message().substr(begin.size());
}

TEST_CASE("a model moves if trainers' settings do not change") {
  const std::string plain = R"({"policy": {"type": "locked"}, "optimizer": {"type": "sgd", "lr": 0.1}})";
  CHECK(between(plain, plain).empty());
  // Trainers do not depend on these.
  CHECK(
      between(plain,
              R"({"policy": {"type": "locked", "clip": {"norm": 1}}, "optimizer": {"type": "sgd", "lr": 1}})")
          .empty());
  CHECK(
      between(plain, R"({"policy": {"type": "locked"}, "optimizer": {"type": "adam"}})") ==
      R"(optimizer's state is ["exp_avg","exp_avg_sq"] here, [] there; optimizer.type is "adam" here, "sgd" there)");
  CHECK(between(plain, R"({"policy": {"type": "hogwild"}})") ==
        R"(policy.type is "hogwild" here, "locked" there)");
  CHECK(between(plain, R"({"policy": {"type": "locked"}, "optimizer": {"type": "sgd", "momentum": 0.9}})") ==
        R"(optimizer's state is ["momentum_buffer"] here, [] there)");
}

TEST_CASE("ftrl keeps its rate in a move") {
  const auto with = [](const std::string& numbers) {
    return R"({"policy": {"type": "locked"}, "optimizer": {"type": "ftrl", )" + numbers + "}}";
  };
  CHECK(between(with(R"("lr": 0.1, "l1": 1)"), with(R"("lr": 0.1, "l1": 2)")).empty());
  CHECK(between(with(R"("lr": 0.1)"), with(R"("lr": 0.2)")) == "optimizer.lr is 0.2 here, 0.1 there");
}

TEST_CASE("a daemon without a configured optimizer adopts that of a model that moves to it") {
  const std::string plain = R"({"policy": {"type": "locked"}, "optimizer": {"type": "adam"}})";
  const std::string adopts = R"({"policy": {"type": "locked"}})";
  CHECK(between(adopts, adopts).empty());
  CHECK(between(plain, adopts).empty());
  // There, pushes carry hyperparameters.
  CHECK(between(adopts, plain) == R"(optimizer's state is ["exp_avg","exp_avg_sq"] here, absent there; )"
                                  R"(optimizer.type is "adam" here, absent there; )"
                                  R"(optimizer is absent here, "the trainers'" there)");
}

TEST_CASE("the keys of groups are compared one by one") {
  const std::string groups =
      R"({"policy": {"type": "locked"}, "groups": [{"match": "fc*", "optimizer": {"type": "adam"}}]})";
  CHECK(between(groups, groups).empty());
  const std::string other =
      R"({"policy": {"type": "locked"}, "groups": [{"match": "fc*", "optimizer": {"type": "adamw"}}]})";
  CHECK(between(groups, other) == R"(groups[0].optimizer.type is "adamw" here, "adam" there)");
  const std::string globs =
      R"({"policy": {"type": "locked"}, "groups": [{"match": "conv*", "optimizer": {"type": "adam"}}]})";
  CHECK(between(groups, globs) == R"(groups[0].match is ["conv*"] here, ["fc*"] there)");
  const std::string none = between(groups, R"({"policy": {"type": "locked"}})");
  CHECK(none.find(R"(groups[0].policy.type is absent here, "locked" there)") != std::string::npos);
}

TEST_CASE("the settings of local steps cannot change in a move") {
  const std::string sgd = R"("optimizer": {"type": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": true})";
  const std::string diloco = R"({"policy": {"type": "diloco", "period": 8}, )" + sgd + "}";
  CHECK(between(diloco, diloco).empty());
  const auto with = [&](const std::string& policy) {
    return between(diloco, R"({"policy": {"type": "diloco", )" + policy + "}, " + sgd + "}");
  };
  CHECK(with(R"("period": 50)") == "policy.period is 50 here, 8 there");
  CHECK(with(R"("period": 8, "inner": {"type": "adamw", "lr": 0.01})") ==
        "policy.inner.lr is 0.01 here, 0.001 there");
  CHECK(with(R"("period": 8, "grace_ms": 100)") == R"(policy.grace_ms is "some" here, "none" there)");
  CHECK(with(R"("period": 8, "fragments": 2)") == "policy.fragments is 2 here, 1 there");
  CHECK(with(R"("period": 8, "delay": 2, "blend": 0.5)") ==
        "policy.blend is 0.5 here, 0.0 there; policy.delay is 2 here, 0 there");
  CHECK(with(R"("period": 8, "deltas": "int8")") == R"(policy.deltas is "int8" here, "none" there)");
  CHECK(between(diloco, R"({"policy": {"type": "locked"}, )" + sgd + "}") ==
        R"(policy.type is "locked" here, "diloco" there)");  // the other keys are of another policy
  CHECK(with(R"("period": 8, "quorum": 2)").empty());        // only the daemon depends on it

  const auto async = [](const std::string& policy, int delay) {
    return R"({"policy": {"type": "async_diloco")" + policy +
           R"(}, "optimizer": {"type": "delayed_nesterov", "delay": )" + std::to_string(delay) + "}}";
  };
  CHECK(between(async("", 2), async("", 2)).empty());
  CHECK(between(async("", 2), async("", 3)) ==
        "optimizer.delay is 3 here, 2 there; policy.learners is 3 here, 2 there");
  CHECK(between(async("", 2), async(R"(, "learners": 4)", 2)) == "policy.learners is 4 here, 2 there");
  CHECK(between(async("", 2), async(R"(, "dynamic_period": true)", 2)) ==
        "policy.dynamic_period is true here, false there");

  const std::string easgd =
      R"({"policy": {"type": "easgd", "alpha": 0.1}, "optimizer": {"type": "sgd", "lr": 0.1}})";
  CHECK(between(easgd,
                R"({"policy": {"type": "easgd", "alpha": 0.2}, "optimizer": {"type": "sgd", "lr": 0.5}})") ==
        "optimizer.lr is 0.5 here, 0.1 there; policy.alpha is 0.2 here, 0.1 there");
  const std::string reduce = R"({"policy": {"type": "allreduce"}})";
  CHECK(between(reduce, R"({"policy": {"type": "allreduce", "bucket_bytes": 8192}})") ==
        "policy.bucket_bytes is 8192 here, 4194304 there");
}

TEST_CASE("groups that trainers exchange each have their own grace") {
  const auto groups = [](const std::string& policy) {
    return moveRules(configOf(R"({"policy": {"type": "diloco", "period": 8},
                                  "optimizer": {"type": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": true},
                                  "groups": [{"match": "fc*")" +
                              policy + "}]}")
                         .groups);
  };
  const std::string some = groups(R"(, "policy": {"type": "diloco", "grace_ms": 100})");
  CHECK(some.find("groups[0].policy.grace_ms: \"some\"\n") != std::string::npos);
  CHECK(some.find("\npolicy.grace_ms: \"none\"\n") != std::string::npos);
  CHECK(groups("").find("some") == std::string::npos);
}

TEST_CASE("the rules that a peer sends are sanitized before they are shown") {
  const std::string own = moveRules(configOf("{}").groups);
  const Status odd = checkMoveRules("policy.type: \"\x1b[2J\"\nno line of rules\n", own);
  CHECK(odd.message().find("policy.type is \"hogwild\" here, \"?[2J\" there") != std::string::npos);
  std::string many;
  for (int i = 0; i < 100; i++) many += "key" + std::to_string(i) + ": 1\n";
  const Status much = checkMoveRules(many, own);
  CHECK(much.message().size() < 2'000);
  CHECK(much.message().find(" more") != std::string::npos);
  CHECK_FALSE(checkMoveRules("", own).ok());  // of a version that sends none
}

TEST_CASE("codecs are negotiated by what a trainer requests") {
  const DaemonConfig config = configOf(R"({"codecs": {"push": {"allowed": ["int8"], "default": "int8"}}})");
  const auto agreed = agreeOnCodecs(config, "", "");
  PSD_REQUIRE_OK(agreed);
  CHECK(agreed->push->name() == "int8");
  CHECK(agreed->pull->name() == "none");
  const auto other = agreeOnCodecs(config, "topk:fraction=0.1", "");
  REQUIRE_FALSE(other.ok());
  CHECK(other.message().find("pushes: ") == 0);
}

}  // namespace
}  // namespace psd::move_rules_test

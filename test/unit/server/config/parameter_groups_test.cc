#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/plan/fragment_plan.h"
#include "server/config/daemon_config.h"
#include "test/support/catch.h"

namespace psd::config_groups_test {
namespace {

std::vector<GroupConfig> groupsOf(const std::string& json) {
  auto loaded = readDaemonConfig(nlohmann::ordered_json::parse(json));
  PSD_REQUIRE_OK(loaded);
  return loaded->config.groups;
}

ModelSpec modelWith(const std::vector<std::string>& names) {
  ModelSpec model{"net", {}};
  for (const std::string& name : names) model.tensors.push_back({name, DType::f32, {4}});
  return model;
}

TEST_CASE("groups inherit from the top level what they do not set") {
  const auto groups = groupsOf(R"({
    "policy": {"type": "locked"}, "optimizer": {"type": "sgd", "lr": 0.5},
    "groups": [{"match": "fc*", "policy": {"type": "hogwild"}},
               {"match": ["*.bias", "scale"], "optimizer": {"type": "adam"}}]})");
  REQUIRE(groups.size() == 3);
  CHECK(groups[0].policy.type == "hogwild");
  CHECK(groups[0].optimizer.fullLearningRate == 0.5);
  CHECK(groups[1].policy.type == "locked");
  CHECK(groups[1].optimizer.name() == "adam");
  CHECK(describePolicies(groups) == "fc*: hogwild, *.bias scale: locked, others: locked");
  CHECK(describePolicies(groupsOf("{}")) == "hogwild");
  CHECK(describeOptimizers(groups) == "fc*: sgd lr=0.5, *.bias scale: adam lr=0.001, others: sgd lr=0.5");
}

TEST_CASE("ftrl is refused where its rate would change or its rows would not begin at 0") {
  const auto whyNot = [](const std::string& json) {
    const auto loaded = readDaemonConfig(nlohmann::ordered_json::parse(json));
    return loaded.ok() ? std::string() : loaded.message();
  };
  CHECK(
      whyNot(
          R"({"policy": {"type": "locked", "staleness": {"rate": "inverse"}}, "optimizer": {"type": "ftrl"}})") ==
      "policy.staleness.rate: cannot be combined with ftrl, whose state holds for one learning rate; "
      "staleness.max can");
  CHECK(whyNot(R"({"policy": {"type": "hogwild", "staleness": {"rate": "damped"}},
                   "groups": [{"match": "wide*", "optimizer": {"type": "group_ftrl"}}]})")
            .starts_with("groups[0].policy.staleness.rate: cannot be combined with group_ftrl"));
  CHECK(whyNot(R"({"policy": {"type": "locked", "staleness": {"max": 5}}, "optimizer": {"type": "ftrl"}})")
            .empty());
  ModelSpec model{"net", {}, {{"item", 4, {RowInitial::Kind::zero}}}};
  const auto groups = groupsOf(R"({"optimizer": {"type": "ftrl"}})");
  PSD_REQUIRE_OK(assignGroups(model, groups));
  model.tables[0].initial = {RowInitial::Kind::uniform};
  CHECK(
      assignGroups(model, groups).message() ==
      "optimizer: rows begin at 0 under ftrl, whose weights are a function of its state, and those of table "
      "'item' begin at other values; declare the table with rows from zero, or give it a group with another "
      "optimizer");
  PSD_REQUIRE_OK(assignGroups(model, groupsOf(R"({"optimizer": {"type": "lion"}})")));
  // A trainer's optimizer meets the same rules.
  auto adopting = groupsOf(R"({"policy": {"type": "locked", "staleness": {"rate": "inverse"}}})");
  adoptOptimizers(adopting, {Optimizer{Ftrl{}, 0.1, {}}});
  CHECK(assignGroups(modelWith({"a"}), adopting).message().starts_with("policy.staleness.rate: cannot"));
}

TEST_CASE("where trainers take the steps, their optimizer is named, and the daemon runs the exchange") {
  const auto easgd =
      groupsOf(R"({"policy": {"type": "easgd", "alpha": 0.25}, "optimizer": {"type": "sgd", "lr": 0.5}})");
  CHECK(describeOptimizers(easgd) == "sgd lr=0.5");
  CHECK(easgd[0].optimizer.describe() == "sgd lr=0.25");
  CHECK(easgd[0].policy.local.rate == 0.5);
  const auto local =
      groupsOf(R"({"policy": {"type": "local_sgd"}, "optimizer": {"type": "sgd", "lr": 0.5}})");
  CHECK(describeOptimizers(local) == "sgd lr=0.5");
  CHECK(local[0].optimizer.describe() != "sgd lr=0.5");
  const auto diloco =
      groupsOf(R"({"policy": {"type": "diloco", "period": 50, "inner": {"type": "adam"}, "grace_ms": 0},
                   "optimizer": {"type": "sgd", "lr": 0.7}})");
  CHECK(describeOptimizers(diloco) == "sgd lr=0.7, in trainers adam lr=0.001");
  CHECK(diloco[0].optimizer.describe() == "sgd lr=0.7");
  CHECK(diloco[0].policy.local.period == 50);
  CHECK(diloco[0].policy.local.endsEarly);
  CHECK_FALSE(diloco[0].policy.local.streams());
  CHECK(diloco[0].policy.local.updatesPerRound == 1);
}

TEST_CASE(
    "without rounds the number of pushes per update comes from the optimizer's delay, or from the policy") {
  const auto arrivals = [](const std::string& learners, const std::string& optimizer) {
    const auto groups = groupsOf(R"({"policy": {"type": "async_diloco", "period": 50)" + learners +
                                 R"(}, "optimizer": {"type": )" + optimizer + "}}");
    CHECK(groups[0].policy.local.period == 50);
    return groups[0].policy.local.updatesPerRound;
  };
  const std::string delayed = R"("delayed_nesterov", "delay": 4)";
  CHECK(arrivals("", delayed) == 4);
  CHECK(arrivals(R"(, "learners": 3)", delayed) == 3);
  CHECK(arrivals("", R"("sgd")") == 1);
  CHECK(arrivals(R"(, "learners": 3)", R"("sgd")") == 3);
}

TEST_CASE("fragments are groups that the policy makes automatically") {
  const auto groups = groupsOf(R"({"policy": {"type": "diloco", "period": 50, "inner": {"type": "adam"},
                                              "fragments": 3, "delay": 4, "blend": 0.5},
                                   "optimizer": {"type": "sgd", "lr": 0.7}})");
  REQUIRE(groups.size() == 3);
  CHECK(groups[2].name() == "fragment 2");
  CHECK(groups[2].optimizer.describe() == "sgd lr=0.7");
  CHECK(groups[0].policy.local.fragments == 3);
  CHECK(groups[0].policy.local.delay == 4);
  CHECK(groups[0].policy.local.blend == 0.5);
  CHECK(groups[0].policy.local.slotEnd(4) == 83);
  CHECK(describePolicies(groups) == "diloco in 3 fragments");
  CHECK(describeOptimizers(groups) == "sgd lr=0.7, in trainers adam lr=0.001");
  const auto assigned = assignGroups(modelWith({"a", "b", "c", "d"}), groups);
  PSD_REQUIRE_OK(assigned);
  CHECK(assigned->ofTensor == std::vector<uint32_t>{0, 1, 2, 0});
  CHECK(assignGroups(modelWith({"a", "b"}), groups).message() ==
        "policy.fragments: 3, and model 'net' has 2 tensors, each of which is in one of them; take fewer");
}

TEST_CASE("explicit groups are fragments where trainers exchange the result of their steps") {
  const auto groups =
      groupsOf(R"({"policy": {"type": "diloco", "period": 50, "inner": {"type": "adam"}, "delay": 4},
                                   "optimizer": {"type": "sgd", "lr": 0.7},
                                   "groups": [{"match": "a", "optimizer": {"type": "adam"}},
                                              {"match": "b*", "policy": {"type": "diloco", "grace_ms": 9}}]})");
  REQUIRE(groups.size() == 3);
  for (uint32_t i = 0; i < 3; i++) {
    CHECK(groups[i].fragment == i);
    CHECK(groups[i].policy.local == groups[0].policy.local);
  }
  const LocalSteps& local = groups[0].policy.local;
  CHECK(local.fragments == 3);
  CHECK(local.fragmentPerGroup);
  CHECK(local.period == 50);
  CHECK(local.delay == 4);
  CHECK(local.endsEarly);  // of one of them
  CHECK(describePolicies(groups) == "a: diloco, b*: diloco, others: diloco");
  CHECK(groups[0].optimizer.name() == "adam");
  CHECK(groups[2].optimizer.name() == "sgd");
  const auto assigned = assignGroups(modelWith({"a", "b", "c", "bc"}), groups);
  PSD_REQUIRE_OK(assigned);
  CHECK(assigned->ofTensor == std::vector<uint32_t>{0, 1, 2, 1});
  CHECK(
      assignGroups(modelWith({"a", "b"}), groups).message() ==
      "groups: they leave no tensor of model 'net' to the top level, which is a fragment too; give the last "
      "group's tensors to it");
  const auto alone = groupsOf(R"({"policy": {"type": "diloco"}, "optimizer": {}})");
  CHECK_FALSE(alone[0].fragment);
}

TEST_CASE("repeated blocks are distributed over fragments in turn, and the rest fills the smallest") {
  const auto tensor = [](std::string name, uint64_t elements) {
    return TensorSpec{std::move(name), DType::f32, {elements}};
  };
  ModelSpec model{"net",
                  {tensor("embedding", 70), tensor("layers.0.in", 30), tensor("layers.0.out", 20),
                   tensor("layers.1.in", 30), tensor("layers.1.out", 20), tensor("layers.2.in", 50),
                   tensor("head", 90), tensor("scale", 1)}};
  CHECK(planFragments(model, 2) == std::vector<uint32_t>{0, 0, 0, 1, 1, 0, 1, 1});
  // Fewer blocks than fragments: each tensor separately, the largest first.
  CHECK(planFragments(model, 4) == std::vector<uint32_t>{1, 3, 2, 3, 3, 2, 0, 1});
  CHECK(planFragments(model, 1) == std::vector<uint32_t>(8));
}

TEST_CASE("a tensor belongs to the first group that matches it") {
  const auto groups = groupsOf(R"({"groups": [{"match": "fc?.*"}, {"match": ["*.bias", "scale"]}]})");
  const auto assigned = assignGroups(
      modelWith({"conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "scale", "fc10.bias"}), groups);
  PSD_REQUIRE_OK(assigned);
  CHECK(assigned->ofTensor == std::vector<uint32_t>{2, 1, 0, 0, 1, 1});
  const auto all = assignGroups(modelWith({"fc1.weight", "scale"}), groups);
  PSD_REQUIRE_OK(all);  // nothing is left for the others
  CHECK(all->ofTensor == std::vector<uint32_t>{0, 1});
}

TEST_CASE("a group without a tensor is rejected with its path") {
  const auto groups = groupsOf(R"({"groups": [{"match": "*"}, {"match": "fc*"}]})");
  const auto shadowed = assignGroups(modelWith({"fc1"}), groups);
  REQUIRE_FALSE(shadowed.ok());
  CHECK(shadowed.error().code == ErrorCode::invalidArgument);
  CHECK(shadowed.message() ==
        "groups[1].match: fc* matches no tensor of model 'net' that the groups before it leave");
  const auto wrong = assignGroups(modelWith({"a", "b"}), groupsOf(R"({"groups": [{"match": ["x", "y?"]}]})"));
  REQUIRE_FALSE(wrong.ok());
  CHECK(wrong.message() ==
        "groups[0].match: x y? matches no tensor of model 'net', whose tensors are a ... b");
}

TEST_CASE("names in an aggregator exist, or are rejected with their path") {
  for (const std::string fragments : {"", R"(, "fragments": 2)"}) {
    const auto groups =
        groupsOf(R"({"policy": {"type": "diloco", "aggregator": {"type": "rda", "direct": ["em*", "x"]})" +
                 fragments + R"(}, "optimizer": {}})");
    const auto wrong = assignGroups(modelWith({"embed", "head"}), groups);
    REQUIRE_FALSE(wrong.ok());
    CHECK(
        wrong.message() ==
        "policy.aggregator.direct: \"x\" matches no tensor of model 'net', whose tensors are embed ... head");
    PSD_REQUIRE_OK(assignGroups(modelWith({"embed", "x"}), groups));
  }
}

TEST_CASE("delayed_nesterov is rejected for tables, whose rows miss updates") {
  ModelSpec model = modelWith({"w"});
  model.tables = {{"item", 4, {}}};
  const auto refused = assignGroups(
      model, groupsOf(R"({"policy": {"type": "locked"}, "optimizer": {"type": "delayed_nesterov"}})"));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message() ==
        "optimizer: delayed_nesterov is for tensors alone, and 'item' is an embedding table, whose rows miss "
        "the updates that do not touch them; give the tables a group of their own");
}

}  // namespace
}  // namespace psd::config_groups_test

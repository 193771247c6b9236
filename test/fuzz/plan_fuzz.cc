// The cluster document of a model, as it is in an engine, and the changes to it.

#include "server/serving/cluster_document_json.h"
#include "test/fuzz/fuzz_list.h"

namespace psd::fuzz {
namespace {
namespace plan_fuzz {

void run(Bytes input) {
  const auto plan = parseDocument(textOf(input));
  if (!plan.ok()) {
    require(plan.message().starts_with("the cluster document"), "an error names what it is about");
    require(plan.message().find('\n') == std::string::npos, "an error is one line");
    return;
  }
  require(validateDocument(*plan).ok(), "a parsed document is valid");
  const auto again = parseDocument(documentText(*plan));
  require(again.ok() && *again == *plan, "a round trip preserves the document");
  const ReplicaSet& group = plan->group;
  if (!group.standby) return;
  const auto promoted = withPrimary(*plan, *group.standby, ~group.history | 1, ~plan->proposal | 1);
  if (promoted.ok()) {
    require(promoted->group.term == group.term + 1, "a new primary has a new term");
    require(documentText(*promoted) != documentText(*plan), "different documents have different texts");
  }
  const auto alone = withoutStandby(*plan, ~plan->proposal | 1);
  require(alone.ok() && !alone->group.standby, "a standby can be removed");
}

std::vector<std::string> seeds() {
  ClusterDocument plan;
  plan.proposal = 5;
  const DaemonId one{7}, other{8};
  plan.group = {1, one, other, 9};
  plan.daemons = {{one, {*parseAddress("tcp://10.0.0.1:5500"), *parseAddress("unix:///run/psd.sock")}},
                  {other, {*parseAddress("tls://[::1]:5500")}}};
  ClusterDocument first;
  first.proposal = 1;
  first.group = {1, one, std::nullopt, 1};
  first.daemons = {{one, {*parseAddress("tcp://localhost:1")}}};
  const auto moved = withMove(first, {11, {{"tcp://there:1", "unix:///there"}, {"tls://[::1]:2"}}}, 12);
  return {documentText(plan), documentText(first), documentText(*moved)};
}

}  // namespace plan_fuzz
}  // namespace

const FuzzTarget kPlanTarget{"plan", "the plan of a model", plan_fuzz::run, plan_fuzz::seeds};

}  // namespace psd::fuzz

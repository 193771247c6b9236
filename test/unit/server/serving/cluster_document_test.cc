#include "server/serving/cluster_document.h"

#include <string>

#include "server/serving/cluster_document_json.h"
#include "test/support/catch.h"

namespace psd::daemon_plan_test {
namespace {

constexpr DaemonId kOne{0x3f2a}, kOther{0x81c0}, kThird{0xfedcba9876543210};

std::vector<Address> placesOf(const std::string& host) {
  return {parseAddress("tcp://" + host + ":5500").value(),
          parseAddress("unix:///run/" + host + ".sock").value()};
}

ClusterDocument samplePlan() {
  ClusterDocument plan;
  plan.proposal = 0x5be1;
  plan.group = {7, kOne, kOther, 0x77};
  plan.daemons = {{kOne, placesOf("one")}, {kOther, placesOf("other")}};
  return plan;
}

const std::string kText = R"({
 "format": "psd plan",
 "format_version": 1,
 "proposal": "0000000000005be1",
 "ended": false,
 "shards": [],
 "groups": [
  {
   "epoch": 7,
   "history": "0000000000000077",
   "primary": "0000000000003f2a",
   "standby": "00000000000081c0"
  }
 ],
 "daemons": {
  "0000000000003f2a": [
   "tcp://one:5500",
   "unix:///run/one.sock"
  ],
  "00000000000081c0": [
   "tcp://other:5500",
   "unix:///run/other.sock"
  ]
 }
}
)";

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), by);
}

TEST_CASE("a cluster document survives a round trip") {
  CHECK(documentText(samplePlan()) == kText);
  const auto read = parseDocument(kText);
  PSD_REQUIRE_OK(read);
  CHECK(*read == samplePlan());

  ClusterDocument first;
  first.proposal = ~uint64_t{0};
  first.group = {1, kThird, std::nullopt, 1};
  first.daemons = {{kThird, {parseAddress("tcp://[::1]:1").value()}}};
  first.ended = true;
  PSD_REQUIRE_OK(validateDocument(first));
  const auto again = parseDocument(documentText(first));
  PSD_REQUIRE_OK(again);
  CHECK(*again == first);

  for (const DocumentSource source :
       {DocumentSource::daemons, DocumentSource::primaryFolder, DocumentSource::standbyFolder}) {
    first.source = source;
    first.saved = source != DocumentSource::daemons;
    const auto told = parseDocument(documentText(first));
    PSD_REQUIRE_OK(told);
    CHECK(*told == first);
  }
  // Of an older version, which did not have the field.
  const auto older = parseDocument(replaced(kText, "\"ended\": false", "\"ended\": true"));
  PSD_REQUIRE_OK(older);
  CHECK(older->saved);
}

TEST_CASE("each invalid document gets its one-line error") {
  const auto [what, by, message] = GENERATE(table<std::string, std::string, std::string>({
      {"psd plan", "psd model", "format: must be \"psd plan\": this is not a cluster document of psd"},
      {"\"format_version\": 1", "\"format_version\": 2",
       "format_version: must be 1, not 2: it was written by another version of psd"},
      {"\"ended\"", "\"endet\"", "endet: unknown key; did you mean 'ended'?"},
      {" \"ended\": false,\n", "", "ended: is needed"},
      {"\"ended\": false", "\"ended\": true, \"from_folder_of\": \"x\"",
       "from_folder_of: must be \"primary\" or \"standby\""},
      {"\"ended\": false", "\"ended\": false, \"from_folder_of\": \"primary\"",
       "from_folder_of: requires a run that is over (ended), and has not moved"},
      {"\"proposal\": \"0000000000005be1\"", "\"proposal\": \"5be1\"",
       "proposal: must be 16 hexadecimal digits, not all 0, not \"5be1\""},
      {"0000000000005be1", "0000000000005BE1",
       "proposal: must be 16 hexadecimal digits, not all 0, not \"0000000000005BE1\""},
      {"0000000000005be1", "0000000000000000",
       "proposal: must be 16 hexadecimal digits, not all 0, not \"0000000000000000\""},
      {"\"proposal\": \"0000000000005be1\"", "\"proposal\": 5", "proposal: must be a string, not 5"},
      {"\"shards\": []", "\"shards\": [{\"count\": 4, \"group\": 0}]",
       "shards: must be empty: the group has all of them"},
      {"\"groups\": [", "\"groups\": [{\"epoch\": 3},", "groups: 2 groups; there is one"},
      {"\"epoch\": 7", "\"epoch\": 0",
       "groups[0].epoch: must be an integer from 1 to 9007199254740992, not 0"},
      {"\"epoch\": 7,", "\"epoch\": 7, \"shards\": 1,",
       "groups[0].shards: unknown key; valid keys: epoch, history, primary, standby"},
      {"\"primary\": \"0000000000003f2a\"", "\"primary\": \"0000000000003f2b\"",
       "groups[0].primary: is not among the daemons"},
      {"\"standby\": \"00000000000081c0\"", "\"standby\": \"0000000000003f2a\"",
       "groups[0].standby: is the primary itself"},
      {"\"standby\": \"00000000000081c0\"", "\"standby\": \"00000000000081c1\"",
       "groups[0].standby: is not among the daemons"},
      {"\"0000000000003f2a\": [", "\"one\": [", "daemons.one: a daemon is named by 16 hexadecimal digits"},
      {"\"tcp://one:5500\"", "\"http://one\"",
       "daemons.0000000000003f2a[0]: address 'http://one': unknown scheme; write tcp://HOST:PORT, "
       "tls://HOST:PORT "
       "or unix:///PATH"},
      {"\"tcp://one:5500\"", "\"tcp://one\"",
       "daemons.0000000000003f2a[0]: 'tcp://one' is written tcp://one:5500"},
      {"\"tcp://one:5500\"", "\"tcp://*:5500\"",
       "daemons.0000000000003f2a[0]: 'tcp://*:5500' cannot be dialled"},
      {"\"tcp://one:5500\"", "\"tcp://one:0\"",
       "daemons.0000000000003f2a[0]: 'tcp://one:0' cannot be dialled"},
  }));
  const auto read = parseDocument(replaced(kText, what, by));
  REQUIRE_FALSE(read.ok());
  CHECK(read.message() == "the cluster document: " + message);
}

TEST_CASE("text that is not a cluster document") {
  CHECK(parseDocument("[]").message() == "the cluster document: must be a JSON object, not a list");
  CHECK(parseDocument("{}").message() ==
        "the cluster document: format: must be \"psd plan\": this is not a cluster document of psd");
  CHECK(parseDocument("").message().find("the cluster document, line 1") == 0);
  CHECK(parseDocument(kText.substr(0, 200)).message().find("the cluster document, line ") == 0);
  CHECK_FALSE(parseDocument(replaced(kText, "\"ended\": false", "\"ended\": false, \"ended\": true")).ok());
}

TEST_CASE("a standby becomes primary: a new term, a new history, and the previous primary is removed") {
  const auto changed = withPrimary(samplePlan(), kOther, 0x99, 0x1234);
  PSD_REQUIRE_OK(changed);
  ClusterDocument expected = samplePlan();
  expected.proposal = 0x1234;
  expected.group = {8, kOther, std::nullopt, 0x99};
  expected.daemons.erase(kOne);
  CHECK(*changed == expected);
}

TEST_CASE("a standby is added and removed") {
  ClusterDocument plan = samplePlan();
  const auto without = withoutStandby(plan, 0x1234);
  PSD_REQUIRE_OK(without);
  plan.group.standby.reset();
  plan.daemons.erase(kOther);
  plan.proposal = 0x1234;
  CHECK(*without == plan);
  const auto with = withStandby(*without, kThird, placesOf("third"), 0x1235);
  PSD_REQUIRE_OK(with);
  plan.group.standby = kThird;
  plan.daemons[kThird] = placesOf("third");
  plan.proposal = 0x1235;
  CHECK(*with == plan);
}

TEST_CASE("an invalid change is rejected") {
  const ClusterDocument plan = samplePlan(), alone = withoutStandby(plan, 1).value();
  const auto places = placesOf("third");
  CHECK(withPrimary(plan, kOne, 1, 1).message() == "groups[0].primary: is that daemon already");
  CHECK(withPrimary(plan, kThird, 1, 1).message() == "groups[0].primary: is not among the daemons");
  CHECK(withPrimary(plan, kOther, 0x77, 1).message() == "groups[0].history: a new primary needs a new one");
  CHECK(withPrimary(plan, kOther, 0x99, 0).message() == "proposal: 0 is no proposal");
  CHECK(withStandby(plan, kThird, places, 1).message() == "groups[0].standby: there is one already");
  CHECK(withStandby(alone, kOne, places, 1).message() == "groups[0].standby: is the primary itself");
  CHECK(withStandby(alone, kThird, {}, 1).message() ==
        "daemons.fedcba9876543210: 0 addresses; a daemon has 1 to 16");
  CHECK(withoutStandby(alone, 1).message() == "groups[0].standby: there is none");
}

TEST_CASE("the document of a run that is over names where the model has moved to") {
  const RecordedMove moved{0xfeed, {{"tcp://a:1", "unix:///a"}, {"tls://b:2"}}};
  const auto plan = withMove(samplePlan(), moved, 0x9);
  PSD_REQUIRE_OK(plan);
  CHECK(plan->ended);
  CHECK(plan->moved == moved);
  const auto parsed = parseDocument(documentText(*plan));
  PSD_REQUIRE_OK(parsed);
  CHECK(*parsed == *plan);
  CHECK_FALSE(withMove(*plan, moved, 0xa).ok());

  const auto refusal = [&](ClusterDocument wrong) {
    const Status valid = validateDocument(wrong);
    REQUIRE_FALSE(valid.ok());
    return valid.message();
  };
  ClusterDocument wrong = *plan;
  wrong.ended = false;
  CHECK(refusal(wrong).find("moved: requires a run that is over") == 0);
  wrong = *plan;
  wrong.moved->move = 0;
  CHECK(refusal(wrong).find("moved.move: ") == 0);
  wrong = *plan;
  wrong.moved->to.clear();
  CHECK(refusal(wrong).find("moved.to: ") == 0);
  wrong = *plan;
  wrong.moved->to[1] = {};
  CHECK(refusal(wrong).find("moved.to[1]: ") == 0);
  wrong = *plan;
  wrong.moved->to[1] = {"nowhere"};
  CHECK(refusal(wrong).find("moved.to[1]: ") == 0);
}

}  // namespace
}  // namespace psd::daemon_plan_test

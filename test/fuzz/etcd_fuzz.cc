// etcd's replies.

#include "server/engine/etcd_json.h"
#include "test/fuzz/fuzz_list.h"

namespace psd::fuzz {
namespace {
namespace etcd_fuzz {

const std::string kKey = "/k";

template <class T>
void check(const Result<T>& read) {
  if (read.ok()) return;
  require(!read.message().empty(), "an error says what is wrong");
  require(read.message().find('\n') == std::string::npos, "an error is one line");
  require(read.message().size() < 1000, "an error is short");
}

/// Every reader sees every input: the bytes do not say which call they answer.
void run(Bytes input) {
  const std::string_view text = textOf(input);
  const auto range = etcd::readRange(text, kKey);
  check(range);
  if (range.ok()) require(range->stored.revision <= range->asOf, "no key has a future revision");
  const auto swapped = etcd::readSwap(text, kKey, "bar");
  check(swapped);
  if (swapped.ok() && swapped->won)
    require(swapped->now.text == "bar", "a swap that succeeded returns its own text");
  check(etcd::readWatch(text, kKey));
  const auto token = etcd::readToken(text);
  check(token);
  if (token.ok()) require(token->find_first_of("\r\n ") == std::string::npos, "a token fits into a header");
  const etcd::Refusal refusal = etcd::readRefusal(500, text);
  require(refusal.error.message.find('\n') == std::string::npos, "a rejection is one line");
}

std::vector<std::string> seeds() {
  const std::string header =
      R"("header":{"cluster_id":"3249","member_id":"3319","revision":"9","raft_term":"2"})";
  const std::string entry =
      R"({"key":"L2s=","create_revision":"2","mod_revision":"7","version":"1","value":"YmFy"})";
  return {
      "{" + header + "}",
      "{" + header + R"(,"kvs":[)" + entry + R"(],"count":"1"})",
      "{" + header + R"(,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"9"}}}]})",
      "{" + header + R"(,"responses":[{"response_range":{"header":{"revision":"9"},"kvs":[)" + entry +
          R"(]}}]})",
      R"({"result":{)" + header + R"(,"created":true}})",
      R"({"result":{)" + header + R"(,"events":[{"kv":)" + entry + R"(},{"type":"DELETE","kv":)" + entry +
          "}]}}",
      R"({"result":{)" + header + R"(,"canceled":true,"compact_revision":"3","cancel_reason":"x"}})",
      R"({"result":{)" + header + R"(,"ID":"5","TTL":"10"}})",
      R"({"error":{"grpc_code":14,"message":"transport is closing"}})",
      "{" + header + R"(,"token":"WSdHTxFxOkMhLbhm.18"})",
      R"({"error":"etcdserver: permission denied","message":"etcdserver: permission denied","code":7})",
  };
}

}  // namespace etcd_fuzz
}  // namespace

const FuzzTarget kEtcdTarget{"etcd", "an answer of etcd", etcd_fuzz::run, etcd_fuzz::seeds};

}  // namespace psd::fuzz

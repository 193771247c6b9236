// The optimizer that a trainer sends with its model: whose it is, and what a restart and a reload keep of it.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/types/model_layout.h"
#include "test/integration/daemon_process.h"
#include "test/support/catch.h"
#include "test/support/local_server.h"
#include "test/support/temp_dir.h"
#include "trainer/client/api/client.h"

namespace psd::trainers_optimizer_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::DaemonProcess;
using testing::LocalServer;
using testing::TempDir;

const ModelSpec kModel{"net", {{"a", DType::f32, {100}}, {"b", DType::f32, {40}}}};
constexpr const char* kAdamW = R"({"type": "adamw", "lr": 0.5})";

/// A trainer that sends `optimizer`; or why it may not join.
Result<std::unique_ptr<Client>> joined(const std::string& address, const std::string& optimizer,
                                       uint32_t rank = 0, const std::string& codec = "") {
  ClientOptions options;
  options.servers = {address};
  options.optimizer = optimizer;
  options.codec = codec;
  PSD_ASSIGN_OR_RETURN(auto client, Client::connect(options));
  const std::vector<float> zeros(ModelLayout(kModel).totalElements());
  PSD_RETURN_IF_ERROR(
      client->join({Rank{rank}, 2}, kModel, [&] { return std::span<const float>(zeros); }).status());
  return client;
}

void checkRefused(const Result<std::unique_ptr<Client>>& answer, const std::string& words) {
  REQUIRE_FALSE(answer.ok());
  INFO(answer.message());
  CHECK(answer.error().code == ErrorCode::invalidArgument);
  CHECK(answer.message().find(words) != std::string::npos);
}

TEST_CASE("the first trainer's optimizer trains the model, and others need the same one or none") {
  LocalServer server(Json{{"policy", {{"type", "locked"}}}});
  const auto first = joined(server.address(), R"({"type": "sgd", "lr": 0.5, "momentum": 0.9})");
  PSD_REQUIRE_OK(first);
  CHECK(server.status()["optimizer"] == "sgd lr=0.5 momentum=0.9");
  CHECK(server.status()["learning_rates"] == Json{{{"group", "others"}, {"rate", 0.5}}});
  for (const char* const same : {"", R"({"type": "sgd", "lr": 0.1, "momentum": 0.5})"}) {
    const auto second = joined(server.address(), same, 1);
    PSD_REQUIRE_OK(second);
    PSD_REQUIRE_OK((*second)->leave());
  }
  checkRefused(joined(server.address(), kAdamW, 1), R"(type "adamw" there, "sgd" here)");
  checkRefused(joined(server.address(), R"({"type": "sgd", "momentum": 0.9, "nesterov": true})", 1),
               "nesterov true there, false here");
  checkRefused(joined(server.address(), "[]", 1), "the trainer's optimizer is not a JSON object");
  checkRefused(joined(server.address(), R"({"lr": -1})", 1), "the trainer's optimizer: lr");
  CHECK(server.status()["optimizer"] == "sgd lr=0.5 momentum=0.9");
  const Json other{{"policy", {{"type", "locked"}}}, {"limits", {{"staged_bytes", 1 << 28}}}};
  PSD_REQUIRE_OK(server.reload(other));
  Json configured = other;
  configured["optimizer"] = {{"type", "sgd"}, {"momentum", 0.9}};
  const auto refused = server.reload(configured);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find("the pushes of trainers set it, such as those of rank 0") !=
        std::string::npos);
  CHECK(server.status()["optimizer"] == "sgd lr=0.5 momentum=0.9");
  // Of the optimizer that the model has, not of the configuration's default.
  checkRefused(joined(server.address(), "", 1, "dgc"), "pushes: ");
}

TEST_CASE("a configured optimizer takes precedence, and a trainer's must equal it") {
  LocalServer server(Json{{"policy", {{"type", "locked"}}}, {"optimizer", {{"type", "sgd"}, {"lr", 0.25}}}});
  PSD_REQUIRE_OK(joined(server.address(), R"({"type": "sgd", "lr": 0.25})"));
  checkRefused(joined(server.address(), R"({"type": "sgd", "lr": 0.5})", 1), "lr 0.5 there, 0.25 here");
  checkRefused(joined(server.address(), kAdamW, 1), "remove `optimizer` from the daemon's configuration");
}

TEST_CASE("a daemon without a configured optimizer resumes with that of the model, also in other groups") {
  TempDir folder;
  DaemonProcess daemon(folder);
  std::vector<std::string> settings = {
      "policy.type=locked",
      R"(durability={"type": "checkpoint", "path": ")" + folder.file("saved") + R"("})"};
  daemon.start(settings);
  {
    auto trainer = joined(daemon.address(), kAdamW);
    PSD_REQUIRE_OK(trainer);
    const std::vector<float> gradient(ModelLayout(kModel).totalElements(), 0.5f);
    PSD_REQUIRE_OK((*trainer)->push(Step{1}, gradient, 1, {}).wait());
    PSD_REQUIRE_OK((*trainer)->leave());
  }
  CHECK(daemon.kill(SIGTERM) == 0);
  settings.emplace_back(R"(groups=[{"match": ["a"]}])");
  daemon.start(settings);
  CHECK(daemon.status()["optimizer"] == "a: adamw lr=0.5, others: adamw lr=0.5");
  // The model's state belongs to its optimizer, which the default of `optimizer` would replace.
  const auto set =
      setKey(parseAddress(daemon.address()).value(), "optimizer.lr=0.05", std::chrono::minutes(1), {});
  REQUIRE_FALSE(set.ok());
  CHECK(set.message().find("from 'adamw lr=0.5' to 'sgd lr=0.05'") != std::string::npos);
  PSD_REQUIRE_OK(joined(daemon.address(), kAdamW));
}

}  // namespace
}  // namespace psd::trainers_optimizer_test

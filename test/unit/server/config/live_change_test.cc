#include "server/config/live_change.h"

#include <string>
#include <vector>

#include "common/config/json_file.h"
#include "server/config/config_schema.h"
#include "server/config/daemon_config.h"
#include "server/config/model_rules.h"
#include "test/support/catch.h"

namespace psd::live_change_test {
namespace {

LoadedConfig read(const std::string& text) {
  auto loaded = readDaemonConfig(*parseJson(text, "test"));
  PSD_REQUIRE_OK(loaded);
  return *loaded;
}

const std::string kLog = R"({"type": "log", "path": "saved"})";
const std::string kCheckpoint = R"({"type": "checkpoint", "path": "saved"})";

}  // namespace

TEST_CASE("a setting that a log cannot replay cannot change while the daemon runs") {
  const auto change = [](const std::string& durability, const std::string& now, const std::string& next) {
    const auto document = [&](const std::string& optimizer) {
      return read(R"({"policy": {"type": "locked"}, "durability": )" + durability +
                  R"(, "optimizer": {"type": "sgd", )" + optimizer + "}}");
    };
    return checkLiveChange(document(now), document(next));
  };
  CHECK(change(kLog, R"("lr": 0.1)", R"("lr": 0.2)").ok());
  CHECK(change(kCheckpoint, R"("weight_decay": 0.1)", R"("weight_decay": 0.2)").ok());
  CHECK(change(kLog, R"("weight_decay": 0.1)", R"("weight_decay": 0.2)").message() ==
        "optimizer.weight_decay: cannot change while the daemon runs with durability.type log, which replays "
        "with one value (0.1 -> 0.2)");
}

TEST_CASE("no number of ftrl can change while the daemon runs") {
  const auto change = [](const std::string& now, const std::string& next) {
    const auto document = [](const std::string& optimizer) {
      return read(R"({"policy": {"type": "locked"}, "optimizer": {"type": "ftrl", )" + optimizer + "}}");
    };
    return checkLiveChange(document(now), document(next));
  };
  CHECK(change(R"("lr": 0.1)", R"("lr": 0.1, "beta": 1)").ok());  // the defaults
  CHECK(
      change(R"("lr": 0.1)", R"("lr": 0.2)").message() ==
      "optimizer: cannot change while the daemon runs from 'ftrl lr=0.1' to 'ftrl lr=0.2', whose weights are "
      "a function of its state and these numbers");
  CHECK_FALSE(change(R"("l1": 0.1)", R"("l1": 0.2)").ok());
}

TEST_CASE("the interval of checkpoints can change while the daemon runs, and their folder cannot") {
  const auto document = [](const std::string& keys) {
    return read(R"({"policy": {"type": "locked"}, "durability": {"type": "log", )" + keys + "}}");
  };
  const LoadedConfig now = document(R"("path": "saved")");
  const LoadedConfig next =
      document(R"("path": "saved", "every_bytes": 1048576, "every_seconds": 5, "every_updates": 9)");
  PSD_REQUIRE_OK(checkLiveChange(now, next));
  CHECK(describeChange(now, next).find("durability.every_bytes: \"auto\" -> 1048576") != std::string::npos);
  CHECK(checkLiveChange(now, document(R"("path": "other")")).message() ==
        "durability.path: cannot change while the daemon runs (\"saved\" -> \"other\")");
}

TEST_CASE("nor can a key of the policy that determines the daemon's optimizer") {
  const auto document = [](const std::string& durability, const std::string& momentum) {
    return read(R"({"policy": {"type": "local_sgd", "slow_momentum": )" + momentum + R"(}, "durability": )" +
                durability + "}");
  };
  CHECK(checkLiveChange(document(kCheckpoint, "0.5"), document(kCheckpoint, "0.9")).ok());
  const Status refused = checkLiveChange(document(kLog, "0.5"), document(kLog, "0.9"));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find("policy: cannot change while the daemon runs from '") == 0);
  CHECK(refused.message().find("with durability.type log, which replays with one value") !=
        std::string::npos);
}

TEST_CASE("learners stay with rounds, or without, where all their other settings are equal") {
  const auto document = [](const std::string& type) {
    return read(R"({"policy": {"type": ")" + type + R"("}, "optimizer": {"type": "sgd", "lr": 0.7}})");
  };
  CHECK(checkLiveChange(document("diloco"), document("diloco")).ok());
  const Status refused = checkLiveChange(document("diloco"), document("async_diloco"));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find("policy: cannot change while the daemon runs from diloco with period") == 0);
  CHECK(refused.message().find("to async_diloco with period") != std::string::npos);
}

TEST_CASE("the error names everything that cannot change") {
  const Status refused =
      checkLiveChange(read(R"({"policy": {"type": "diloco"}, "optimizer": {"type": "sgd", "lr": 0.7}})"),
                      read(R"({"policy": {"type": "async_diloco"}, "optimizer": {"type": "adam"},
                               "shards": 3, "threads": 63})"));
  REQUIRE_FALSE(refused.ok());
  CAPTURE(refused.message());
  for (const char* const key : {"policy", "shards", "threads", "optimizer"})
    CHECK(refused.message().find(std::string(key) + ": cannot change while") != std::string::npos);
}

TEST_CASE("groups are distinguished from the same number of fragments") {
  const auto document = [](const std::string& fragments) {
    return read(R"({"policy": {"type": "diloco", "period": 8)" + fragments +
                R"(}, "optimizer": {"type": "sgd", "lr": 0.7}})");
  };
  const auto groups = read(R"({"policy": {"type": "diloco", "period": 8},
                               "optimizer": {"type": "sgd", "lr": 0.7}, "groups": [{"match": "fc*"}]})");
  const Status refused = checkLiveChange(document(R"(, "fragments": 2)"), groups);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.message().find(", fragments 2, delay 0") != std::string::npos);
  CHECK(refused.message().find(", groups 2, delay 0") != std::string::npos);
}

TEST_CASE("each number and flag can change while the daemon runs where its declaration says so") {
  using Json = nlohmann::ordered_json;
  uint64_t live = 0, fixed = 0;
  const auto check = [&](const std::string& section, const std::string& name, const Json& key) {
    const std::string type = key.value("type", Json()).is_string() ? key["type"] : "";
    if (!key.contains("default") || (type != "integer" && type != "number" && type != "boolean")) return;
    Json changed;
    (section.empty() ? changed : changed[section])[name] =
        type == "boolean" ? Json(!key["default"].get<bool>()) : Json(key["default"].get<double>() + 64);
    INFO(changed.dump());
    const bool declared = key.value("x-live", false);
    CHECK(isLive(section.empty() ? name : section + "." + name) == declared);
    CHECK(checkLiveChange(read("{}"), read(changed.dump())).ok() == declared);
    (declared ? live : fixed)++;
  };
  for (const auto& [name, key] : configSchema()["properties"].items()) {
    check("", name, key);
    if (!key.contains("properties") || name == "model" || name == "replication" || name == "engine" ||
        name == "tls")
      continue;
    for (const auto& [below, one] : key["properties"].items()) check(name, below, one);
  }
  CHECK(live > 10);
  CHECK(fixed > 5);
}

TEST_CASE("a key in a list or under an alternative is live with what it lies in") {
  for (const char* path :
       {"policy.clip.norm", "groups[2].optimizer.lr", "tables[0].evict.by", "durability.every_bytes",
        "publish.every_seconds", "publish.every_updates", "publish.keep", "publish.parts_timeout_seconds",
        "auth.certificates.trainer-*", "log.level"}) {
    INFO(path);
    CHECK(isLive(path));
  }
  for (const char* path : {"groups", "groups[0].match", "tables[1].row_steps", "durability.keep", "limits",
                           "log.file", "policy_of_nothing"}) {
    INFO(path);
    CHECK_FALSE(isLive(path));
  }
}

TEST_CASE("the rules of tables can change, those of admission not with a log") {
  const auto change = [](const std::string& durability, const std::string& next) {
    const auto document = [&](const std::string& rules) {
      return read(R"({"policy": {"type": "locked"}, "durability": )" + durability +
                  R"(, "tables": [{"match": "a", )" + rules + "}]}");
    };
    return checkLiveChange(document(R"("max_rows": 5, "evict": {"by": "least_recent"})"), document(next));
  };
  const std::string evict = R"("max_rows": 6, "evict": {"by": "age", "updates": 3})";
  const std::string admit = R"("max_rows": 5, "evict": {"by": "least_recent"}, "admit": {"after_pushes": 3})";
  CHECK(change(kLog, evict).ok());
  CHECK(change(kCheckpoint, evict).ok());
  CHECK(change(kCheckpoint, admit).ok());
  CHECK(
      change(kLog, admit).message() ==
      "tables[0].admit: cannot change while the daemon runs with durability.type log, which replays with one "
      R"(value (none -> {"after_pushes":3,"counters":4194304}))");
  CHECK_FALSE(change(kCheckpoint, R"("row_steps": false)").ok());
}

TEST_CASE("a standby's limits below its primary's are named") {
  const auto below = [](const std::string& primarys, const std::string& own) {
    return lowerLimits(read(R"({"limits": )" + primarys + "}").effective,
                       read(R"({"limits": )" + own + "}").effective);
  };
  using Lines = std::vector<std::string>;
  CHECK(below("{}", "{}") == Lines{});
  CHECK(below(R"({"table_bytes": 1000})", R"({"table_bytes": 2000, "drain_ms": 1})") == Lines{});
  CHECK(below(R"({"table_bytes": 2000})", R"({"table_bytes": 1000})") ==
        Lines{"limits.table_bytes 1000 (primary: 2000)"});
  CHECK(below("{}", R"({"model_bytes": 1000})") == Lines{"limits.model_bytes 1000 (primary: 0)"});
  CHECK(below(R"({"model_bytes": 1000})", "{}") == Lines{});  // 0: what fits
  CHECK(below("{}", R"({"connections": 10, "staged_bytes": 65536})") ==
        Lines{"limits.connections 10 (primary: 4096)", "limits.staged_bytes 65536 (primary: 1073741824)"});
}

}  // namespace psd::live_change_test

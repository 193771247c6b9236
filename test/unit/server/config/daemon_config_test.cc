#include "server/config/daemon_config.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>

#include "common/config/json_file.h"
#include "server/config/config_schema.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::config_daemon_test {
namespace {

Result<LoadedConfig> read(const std::string& text) { return readDaemonConfig(*parseJson(text, "test")); }

std::string problem(const std::string& text) {
  Result<LoadedConfig> result = read(text);
  return result.ok() ? "no error" : result.message();
}

std::string problemWith(const ConfigOverrides& overrides) {
  auto env = makePosixEnv();
  Result<LoadedConfig> result = loadDaemonConfig(*env, "", overrides);
  return result.ok() ? "no error" : result.message();
}

}  // namespace

TEST_CASE("an empty document gives the defaults") {
  auto loaded = read("{}");
  PSD_REQUIRE_OK(loaded);
  const DaemonConfig& config = loaded->config;
  CHECK(config.listen == std::vector<Address>{*parseAddress("tcp://localhost:5500")});
  CHECK(config.devices == std::vector<DeviceChoice>{DeviceChoice{}});
  CHECK_FALSE(config.shards);
  CHECK(config.spin == std::chrono::microseconds(0));
  CHECK(config.threads == std::clamp(std::thread::hardware_concurrency(), 1u, 4u));
  CHECK(config.groups.back().policy.type == "hogwild");
  CHECK(config.groups.back().optimizer.name() == "sgd");
  CHECK_FALSE(config.model);
  CHECK_FALSE(config.worldSize);
  CHECK_FALSE(config.exitWhenDone);
  CHECK(config.save.empty());
  CHECK(config.log.level == "info");
  CHECK(config.log.format == "text");
  CHECK(config.log.file.empty());
  CHECK(config.limits.connections == 4096);
  CHECK(config.limits.messageBytes == 8'388'608);
  CHECK(config.limits.sliceBytes == 4'194'304);
  CHECK(config.limits.inFlightBytes == 1'073'741'824);
  CHECK(config.limits.calls == 1024);
  CHECK(config.limits.outgoingBytes == 67'108'864);
  CHECK(config.limits.readTimeoutMs == 30'000);
  CHECK(config.limits.writeTimeoutMs == 30'000);
  CHECK(config.limits.drainMs == 5'000);
  CHECK(config.limits.ringBytes == 67'108'864);
  CHECK(config.limits.allRingsBytes == 1'073'741'824);
  CHECK(config.limits.modelBytes == 0);
}

TEST_CASE("every key reaches its field") {
  auto loaded = read(R"({
    "$schema": "./psd.schema.json",
    "listen": ["tcp://*:0", "tcp://[::1]:7000", "unix:///run/psd.sock"], "insecure": true,
    "devices": ["cuda:0", "cuda:1", "cpu"], "shards": 8, "threads": 2, "spin_us": 70,
    "policy": {"type": "locked"}, "optimizer": {"type": "adam", "lr": 0.001},
    "model": {"name": "m", "tensors": [{"name": "w", "shape": [3, 2]}, {"name": "b", "shape": [], "dtype": "f32"}]},
    "world_size": 3, "exit_when_done": true, "save": "/tmp/m.safetensors",
    "log": {"level": "debug", "format": "json", "file": "/tmp/log"},
    "limits": {"connections": 10, "message_bytes": 65536, "slice_bytes": 4096, "outgoing_bytes": 131072,
               "in_flight_bytes": 70000, "staged_bytes": 65536, "calls": 16, "ring_bytes": 7, "all_rings_bytes": 8,
               "read_timeout_ms": 1, "write_timeout_ms": 2, "drain_ms": 0, "model_bytes": 5}})");
  PSD_REQUIRE_OK(loaded);
  const DaemonConfig& config = loaded->config;
  REQUIRE(config.listen.size() == 3);
  CHECK(config.listen[0].toString() == "tcp://*:0");
  CHECK(config.listen[1].host == "::1");
  CHECK(config.listen[2].path == "/run/psd.sock");
  REQUIRE(config.devices.size() == 3);
  CHECK(config.devices[1] == DeviceChoice{DeviceChoice::Kind::cuda, 1});
  CHECK(config.devices[2] == DeviceChoice{DeviceChoice::Kind::cpu});
  CHECK(config.shards == 8);
  CHECK(config.threads == 2);
  CHECK(config.spin == std::chrono::microseconds(70));
  CHECK(config.groups.back().policy.type == "locked");
  CHECK(config.groups.back().policy.plan.make);
  CHECK(config.groups.back().optimizer.name() == "adam");
  CHECK(config.groups.back().optimizer.fullLearningRate == 0.001);
  REQUIRE(config.model);
  CHECK(config.model->spec.name == "m");
  CHECK(config.model->spec.tensors ==
        std::vector<TensorSpec>{{"w", DType::f32, {3, 2}}, {"b", DType::f32, {}}});
  CHECK(config.model->file.empty());
  REQUIRE(config.worldSize);
  CHECK(config.worldSize->min == 3);
  CHECK(config.worldSize->max == 3);
  CHECK(config.exitWhenDone);
  CHECK(config.save == "/tmp/m.safetensors");
  CHECK(config.log.level == "debug");
  CHECK(config.log.format == "json");
  CHECK(config.log.file == "/tmp/log");
  CHECK(config.limits.connections == 10);
  CHECK(config.limits.messageBytes == 65536);
  CHECK(config.limits.sliceBytes == 4096);
  CHECK(config.limits.inFlightBytes == 70000);
  CHECK(config.limits.calls == 16);
  CHECK(config.limits.outgoingBytes == 131072);
  CHECK(config.limits.ringBytes == 7);
  CHECK(config.limits.allRingsBytes == 8);
  CHECK(config.limits.readTimeoutMs == 1);
  CHECK(config.limits.writeTimeoutMs == 2);
  CHECK(config.limits.drainMs == 0);
  CHECK(config.limits.modelBytes == 5);
}

TEST_CASE("the effective configuration reads as the same configuration") {
  auto text = GENERATE(
      R"({})", R"({"device": "cuda:1", "policy": {"type": "locked"}, "world_size": 2})",
      R"({"devices": ["cpu"], "model": {"file": "/m.safetensors"}, "optimizer": {"type": "adamw"}})",
      R"({"model": {"tensors": [{"name": "w", "shape": [2]}]}, "optimizer": {"schedule": {"type": "step", "every_updates": 9}}})");
  auto first = read(text);
  PSD_REQUIRE_OK(first);
  auto second = readDaemonConfig(first->effective);
  PSD_REQUIRE_OK(second);
  CHECK(second->effective.dump() == first->effective.dump());
}

TEST_CASE("a model can come from a file") {
  auto loaded = read(R"({"model": {"file": "values.safetensors"}})");
  PSD_REQUIRE_OK(loaded);
  CHECK(loaded->config.model->file == "values.safetensors");
  CHECK(loaded->config.model->spec.tensors.empty());
}

TEST_CASE("each wrong value gets its one-line error") {
  auto [text, message] = GENERATE(table<std::string, std::string>({
      {R"([])", "the configuration: must be an object, not a list"},
      {R"({"polcy": {}})", "polcy: unknown key; did you mean 'policy'?"},
      {R"({"policy": {"tpye": "locked"}})", "policy.tpye: unknown key; did you mean 'type'?"},
      {R"({"color": 1})",
       "color: unknown key; valid keys: listen, auth, tls, insecure, http, engine, daemons, index, device, "
       "devices, shards, threads, spin_us, policy, optimizer, groups, row_shards, tables, model, world_size, "
       "codecs, membership, exit_when_done, save, durability, replication, publish, log, limits"},
      {R"({"publish": {"from": "publishers"}, "policy": {"type": "locked"}})",
       "policy: is about a model that the daemon trains, and with publish.from \"publishers\" it has none"},
      {R"({"publish": {"from": "publishers"}, "durability": {"type": "log", "path": "d"}})",
       "durability: is about a model that the daemon trains, and with publish.from \"publishers\" it has "
       "none: "
       "publish.path has the folder of the versions"},
      {R"({"publish": {"from": "publishers", "every_seconds": 4}})",
       "publish.every_seconds: requires from \"training\", not \"publishers\""},
      {R"({"publish": {"path": "v"}})",
       "publish.path: requires from \"publishers\" or \"upstream\", not \"training\""},
      {R"({"publish": {"from": "upstream"}})",
       "publish.upstream: must name at least one daemon, as [\"tcp://node7:5500\"]"},
      {R"({"publish": {"from": "upstream", "upstream": ["tcp://a:1", "tcp://*:2"]}})",
       "publish.upstream[1]: \"tcp://*:2\" cannot be dialled: it needs a host and a port"},
      {R"({"publish": {"from": "publishers", "upstream": ["tcp://a:1"]}})",
       "publish.upstream: requires from \"upstream\", not \"publishers\""},
      {R"({"replicaton": {}})", "replicaton: unknown key; did you mean 'replication'?"},
      {R"({"replication": {}})", "replication: requires `engine`: without one a daemon has no standby"},
      {R"({"index": 0})", "index: requires `daemons`, those that serve a model together"},
      {R"({"$schema": {}})", "$schema: must be a string, not an object"},
      {R"({"save": "a\u0000b"})", R"(save: must be a path without zero bytes, not "a\u0000b")"},
      {R"({"listen": ["unix:///a\u0000b"]})",
       "listen[0]: address 'unix:///a?b': it has a zero byte; write tcp://HOST:PORT, tls://HOST:PORT or "
       "unix:///PATH"},
      {R"({"listen": ["tcp://localhost:1", "tls://localhost:1"], "tls": {"certificate": "c", "key": "k"}})",
       R"(listen[1]: "tls://localhost:1" cannot be listened on beside "tcp://localhost:1" of listen[0])"},
      {R"({"listen": ["tcp://localhost:1"], "http": {"listen": ["tcp://localhost:1"]}})",
       R"(http.listen[0]: "tcp://localhost:1" cannot be listened on beside "tcp://localhost:1" of listen[0])"},
      {R"({"http": {"listen": ["unix:///a", "unix:///a"]}})",
       R"(http.listen[1]: "unix:///a" cannot be listened on beside "unix:///a" of http.listen[0])"},
      {R"({"listen": ["tcp://*:7"], "insecure": true, "http": {"listen": ["tcp://localhost:7"]}})",
       R"(http.listen[0]: "tcp://localhost:7" cannot be listened on beside "tcp://*:7" of listen[0])"},
      {R"({"model": {"tables": [{"name": "user", "dim": 2000}]}, "limits": {"slice_bytes": 4096}})",
       "limits.slice_bytes: a row of table 'user' takes 8016 bytes with its id, and slice_bytes is 4096"},
      {R"({"durability": {"full_every": 2}})",
       "durability.full_every: requires type checkpoint or log, not 'none'"},
      {R"({"durability": {"type": "checkpoint", "path": "x", "full_every": 0}})",
       "durability.full_every: must be an integer from 1 to 1000, not 0"},
      {R"({"tables": [{"match": "a", "evict": {}}]})",
       R"(tables[0].evict.by: is needed: "age", "least_recent" or "norm")"},
      {R"({"tables": [{"match": "a", "evict": {"by": "size"}}]})",
       R"(tables[0].evict.by: must be one of "age", "least_recent", "norm", not "size")"},
      {R"({"tables": [{"match": "a", "evict": {"by": "age"}}]})",
       "tables[0].evict.updates: is needed: how many updates without a row make it due"},
      {R"({"tables": [{"match": "a", "evict": {"by": "age", "updates": 0}}]})",
       "tables[0].evict.updates: must be an integer from 1 to 549755813888, not 0"},
      {R"({"tables": [{"match": "a", "evict": {"by": "age", "updates": 9, "below": 1}}]})",
       "tables[0].evict.below: requires by norm, not 'age'"},
      {R"({"tables": [{"match": "a", "evict": {"by": "norm"}}]})",
       "tables[0].evict.below: is needed: the norm from which a row stays"},
      {R"({"tables": [{"match": "a", "evict": {"by": "norm", "below": -1}}]})",
       "tables[0].evict.below: must be a number from 0 to 1000000, not -1"},
      {R"({"tables": [{"match": "a", "max_rows": 5, "evict": {"by": "least_recent", "updates": 3}}]})",
       "tables[0].evict.updates: requires by age or norm, not 'least_recent'"},
      {R"({"tables": [{"match": "a", "evict": {"by": "age", "update": 3}}]})",
       "tables[0].evict.update: unknown key; did you mean 'updates'?"},
      {R"({"tables": [{"match": "a", "admit": {}}]})",
       "tables[0].admit: needs 'after_pushes' or 'probability'"},
      {R"({"tables": [{"match": "a", "admit": {"after_pushes": 2, "probability": 0.5}}]})",
       "tables[0].admit: holds 'after_pushes' and 'probability'; give only one of the two"},
      {R"({"tables": [{"match": "a", "admit": {"after_pushes": 1}}]})",
       "tables[0].admit.after_pushes: must be an integer from 2 to 255, not 1"},
      {R"({"tables": [{"match": "a", "admit": {"after_pushes": 2, "counters": 63}}]})",
       "tables[0].admit.counters: must be an integer from 64 to 268435456, not 63"},
      {R"({"tables": [{"match": "a", "admit": {"probability": 1.5}}]})",
       "tables[0].admit.probability: must be a number from 0 to 1, not 1.5"},
      {R"({"tables": [{"match": "a", "admit": {"probability": 0.5, "counters": 64}}]})",
       "tables[0].admit.counters: requires after_pushes, not 'probability'"},
      {R"({"durability": {"path": "x"}})", "durability.path: requires type checkpoint or log, not 'none'"},
      {R"({"durability": {"type": "checkpoint", "path": "x", "segment_bytes": 65536}})",
       "durability.segment_bytes: requires type log, not 'checkpoint'"},
      {R"({"durability": {"type": "checkpoint", "path": "x", "every_bytes": 65536}})",
       "durability.every_bytes: requires type log, not 'checkpoint'"},
      {R"({"durability": {"type": "log", "path": "x", "every_bytes": 1000}, "policy": {"type": "locked"}})",
       "durability.every_bytes: must be \"auto\", 0 or an integer from 65536 to 1099511627776, not 1000"},
      {R"({"durability": {"type": "log", "path": "x", "every_bytes": "some"}})",
       "durability.every_bytes: must be \"auto\", 0 or an integer from 65536 to 1099511627776, not \"some\""},
      {R"({"durability": {"type": "log", "path": "x", "every_bytes": -1}})",
       "durability.every_bytes: must be \"auto\", 0 or an integer from 65536 to 1099511627776, not -1"},
      {R"({"policy": {"bound": 3}})",
       "policy.bound: no key of type 'hogwild'; valid keys: type, staleness, clip"},
      {R"({"limits": {"conections": 1}})", "limits.conections: unknown key; did you mean 'connections'?"},
      {R"({"policy": {"type": "lockd"}})",
       R"(policy.type: must be one of "hogwild", "locked", "bounded_staleness", "sync", "easgd", "local_sgd", "diloco", "async_diloco", "allreduce", not "lockd"; did you mean "locked"?)"},
      {R"({"optimizer": {"lr": "fast"}})", "optimizer.lr: must be a number from 0 to 1000000, not \"fast\""},
      {R"({"optimizer": {"lr": -0.1}})", "optimizer.lr: must be a number from 0 to 1000000, not -0.1"},
      {R"({"listen": "tcp://a:1"})", "listen: must be a list, not \"tcp://a:1\""},
      {R"({"listen": []})", "listen: must hold at least one address, as \"tcp://localhost:5500\""},
      {R"({"listen": ["tcp://a:1", "http://a"]})",
       "listen[1]: address 'http://a': unknown scheme; write tcp://HOST:PORT, tls://HOST:PORT or "
       "unix:///PATH"},
      {R"({"device": "gpu"})", R"(device: must be "auto", "cpu" or "cuda:N" with N from 0 to 63, not "gpu")"},
      {R"({"devices": []})", "devices: must hold at least one device, as \"cuda:0\""},
      {R"({"devices": ["cpu", "auto"]})", R"(devices[1]: "auto" stands alone, as "device": "auto")"},
      {R"({"devices": ["cpu", "cpu"]})", R"(devices[1]: "cpu" is listed twice)"},
      {R"({"devices": ["cuda:64"]})",
       R"(devices[0]: must be "auto", "cpu" or "cuda:N" with N from 0 to 63, not "cuda:64")"},
      {R"({"device": "cpu", "devices": ["cpu"]})",
       "devices: stands in place of 'device'; give only one of the two"},
      {R"({"devices": ["cuda:0", "cuda:1"], "shards": 1})",
       "shards: must be at least the number of devices (2), not 1"},
      {R"({"shards": 0})", "shards: must be an integer from 1 to 65536, not 0"},
      {R"({"spin_us": 10001})", "spin_us: must be an integer from 0 to 10000, not 10001"},
      {R"({"threads": 1.5})", "threads: must be an integer from 1 to 256, not 1.5"},
      {R"({"world_size": 0})",
       "world_size: must be an integer from 1 to 1000000 or an object with max, not 0"},
      {R"({"world_size": "all"})",
       R"(world_size: must be an integer from 1 to 1000000 or an object with max, not "all")"},
      {R"({"world_size": {"min": 2}})",
       "world_size.max: is needed: the most trainers that may be in at once"},
      {R"({"world_size": {"min": 3, "max": 2}})", "world_size.min: must be at most max (2)"},
      {R"({"world_size": {"max": 5000}})", "world_size: must be at most limits.connections (4096), not 5000"},
      {R"({"world_size": 5000})", "world_size: must be at most limits.connections (4096), not 5000"},
      {R"({"world_size": 4, "policy": {"type": "sync", "aggregator": {"type": "krum"}}})",
       "world_size: 4 trainers never begin a round of policy 'sync', which waits for 5 (start_trainers, "
       "quorum or "
       "its aggregator)"},
      {R"({"world_size": {"max": 2}, "groups": [{"match": "w", "policy": {"type": "sync", "quorum": 3}}]})",
       "world_size: 2 trainers never begin a round of policy 'sync', which waits for 3 (start_trainers, "
       "quorum "
       "or its aggregator)"},
      {R"({"world_size": 2, "policy": {"type": "sync", "backup_trainers": 2}})",
       "world_size: 2 trainers and 2 backup_trainers of policy 'sync': a round would take one gradient and "
       "drop the others; expected fewer backup_trainers"},
      {R"({"codecs": {"push": {"default": "dgc"}}, "optimizer": {"type": "sgd", "momentum": 0.9}})",
       "codecs.push.default: codec 'dgc:fraction=0.01,momentum=0.9' has a momentum, which cannot be combined "
       "with "
       "that of "
       "optimizer 'sgd lr=0.01 momentum=0.9'; dgc:momentum=0 works with any"},
      {R"({"codecs": {"push": {"default": "dgc"}}, "policy": {"type": "easgd"}})",
       "codecs.push.default: codec 'dgc:fraction=0.01,momentum=0.9' has a momentum, which cannot be combined "
       "with "
       "policy "
       "'easgd', whose trainers push no gradients; dgc:momentum=0 works with any"},
      {R"({"policy": {"type": "diloco"}})",
       "optimizer: must be given under policy diloco: it steps with what trainers come to in `period` steps "
       "of "
       "`inner`; to begin with, {\"type\": \"sgd\", \"lr\": 0.7, \"momentum\": 0.9, \"nesterov\": true}"},
      {R"({"policy": {"type": "diloco", "grace_ms": 9, "backup_trainers": 1}, "optimizer": {}})",
       "policy.grace_ms: excludes backup_trainers: a round that has a quorum closes after the grace period, "
       "with any number of trainers missing"},
      {R"({"policy": {"type": "diloco", "grace_ms": "measured"}, "optimizer": {}})",
       R"(policy.grace_ms: must be "auto" or an integer from 0 to 86400000, not "measured")"},
      {R"({"policy": {"type": "diloco", "grace_ms": -1}, "optimizer": {}})",
       R"(policy.grace_ms: must be "auto" or an integer from 0 to 86400000, not -1)"},
      {R"({"policy": {"type": "diloco", "grace_ms": 9, "grace_max_ms": 9}, "optimizer": {}})",
       R"(policy.grace_max_ms: requires grace_ms "auto")"},
      {R"({"policy": {"type": "diloco", "aggregator": "median", "weights": "equal"}, "optimizer": {}})",
       "policy.weights: requires aggregator mean or rda; median counts all contributions equally"},
      {R"({"policy": {"type": "diloco", "late": "count"}, "optimizer": {}})",
       R"(policy.late: must be "drop" or {"rate": a number}, not "count")"},
      {R"({"policy": {"type": "diloco", "late": 3}, "optimizer": {}})",
       R"(policy.late: must be "drop" or {"rate": a number}, not 3)"},
      {R"({"policy": {"type": "sync", "aggregator": 3}})",
       "policy.aggregator: must be an object with a type, or a type alone: mean, median, trimmed_mean, krum, "
       "multi_krum, rda, not 3"},
      {R"({"policy": {"type": "diloco", "late": {}}, "optimizer": {}})",
       "policy.late.rate: is required: the weight factor of a contribution for each round that it is late"},
      {R"({"policy": {"type": "diloco", "late": {"rate": 0}}, "optimizer": {}})",
       "policy.late.rate: must be a number greater than 0 and of at most 1, not 0"},
      {R"({"policy": {"type": "diloco", "late": {"rate": 1}, "aggregator": "median"}, "optimizer": {}})",
       "policy.late: with a rate requires aggregator mean or rda; median counts all contributions equally"},
      {R"({"policy": {"type": "async_diloco"}})",
       "optimizer: must be given under policy async_diloco: it steps with what trainers come to in `period` "
       "steps of `inner`; to begin with, {\"type\": \"delayed_nesterov\", \"lr\": 0.7, \"momentum\": 0.9, "
       "\"delay\": N} for N trainers"},
      {R"({"policy": {"type": "async_diloco", "quorum": 2}, "optimizer": {}})",
       "policy.quorum: no key of type 'async_diloco'; valid keys: type, period, inner, learners, "
       "dynamic_period"},
      {R"({"policy": {"type": "diloco", "inner": {"type": "sgd", "nesterov": true}}, "optimizer": {}})",
       "policy.inner.nesterov: Nesterov momentum requires a momentum"},
      {R"({"policy": {"type": "diloco", "inner": {"type": "sgd", "eps": 1}}, "optimizer": {}})",
       "policy.inner.eps: no key of type 'sgd'; valid keys: type, lr, weight_decay, momentum, nesterov, "
       "schedule"},
      {R"({"policy": {"type": "diloco", "inner": {"schedule": {"type": "cosine"}}}, "optimizer": {}})",
       "policy.inner.schedule.total_steps: is required by type 'cosine'"},
      {R"({"policy": {"type": "diloco", "clip": {"value": 1}}, "optimizer": {}})",
       "policy.clip: is for gradients; under this policy trainers push differences of parameters"},
      {R"({"policy": {"type": "async_diloco"}, "optimizer": {}, "groups": [{"match": "w"}]})",
       "groups: cannot be combined with policy async_diloco, whose trainers take steps of the whole model by "
       "themselves"},
      {R"({"policy": {"type": "locked"}, "optimizer": {}, "groups": [{"match": "w", "policy": {"type": "diloco"}}]})",
       "groups[0].policy: policy diloco is for the whole model, whose trainers take steps by themselves: "
       "give "
       "it at the top level too"},
      {R"({"policy": {"type": "diloco"}, "optimizer": {}, "groups": [{"match": "w", "policy": {"type": "locked"}}]})",
       "groups[0].policy.type: must be \"diloco\", like the top level's policy, under which local steps "
       "cover the whole model"},
      {R"({"policy": {"type": "diloco"}, "optimizer": {}, "groups": [{"match": "w", "policy": {"quorum": 2}}]})",
       "groups[0].policy.type: must be \"diloco\", like the top level's policy, under which local steps "
       "cover the whole model"},
      {R"({"policy": {"type": "diloco"}, "optimizer": {}, "groups": [{"match": "w", "policy": {"type": "diloco", "period": 9}}]})",
       "groups[0].policy.period: belongs to the top level: local steps cover the whole model, and each group "
       "is a part of it that trainers exchange"},
      {R"({"policy": {"type": "diloco"}, "optimizer": {}, "groups": [{"match": "w", "policy": {"type": "diloco", "clip": {"value": 1}}}]})",
       "groups[0].policy.clip: is for gradients; under this policy trainers push differences of parameters"},
      {R"({"policy": {"type": "diloco", "period": 9, "delay": 3}, "optimizer": {}, "groups": [{"match": "v"}, {"match": "w"}]})",
       "policy.delay: must be below period / fragments (3), of which the groups make 3: the result of a push "
       "is applied before the next push"},
      {R"({"policy": {"type": "diloco", "period": 2}, "optimizer": {}, "groups": [{"match": "v"}, {"match": "w"}]})",
       "groups: and what they leave are 3 fragments, and may be at most policy.period (2) and 256: each is "
       "pushed once per period"},
      {R"({"policy": {"type": "diloco", "period": 3, "fragments": 4}, "optimizer": {}})",
       "policy.fragments: must be at most period (3): each is pushed once per period"},
      {R"({"policy": {"type": "diloco", "period": 50, "fragments": 4, "delay": 12}, "optimizer": {}})",
       "policy.delay: must be below period / fragments (12): the result of a push is applied before the "
       "next push"},
      {R"({"policy": {"type": "diloco", "period": 50, "blend": 0.5}, "optimizer": {}})",
       "policy.blend: requires a delay: without one a trainer takes no step between a push and its result"},
      {R"({"policy": {"type": "diloco", "delay": 1, "blend": 1}, "optimizer": {}})",
       "policy.blend: must be a number of at least 0 and less than 1, not 1"},
      {R"({"policy": {"type": "diloco", "deltas": "topk"}, "optimizer": {}})",
       R"(policy.deltas: must be one of "none", "int8", "int4", "e3m0", not "topk")"},
      {R"({"policy": {"type": "diloco", "deltas": "e3m0"}, "optimizer": {}, "codecs": {"pull": {"default": "int8"}}})",
       "codecs.pull.default: cannot be combined with policy.deltas, by which pulls are differences"},
      {R"({"policy": {"type": "diloco", "fragments": 2}, "optimizer": {}, "groups": [{"match": "w"}]})",
       "policy.fragments: cannot be combined with `groups`, each of which is a fragment, as is what they "
       "leave to "
       "the top level"},
      {R"({"daemons": ["unix:///a", "unix:///b"], "index": 0, "optimizer": {},
           "policy": {"type": "diloco", "fragments": 2, "round_timeout_ms": 9}})",
       "durability.type: must be \"log\" or \"checkpoint\" with fragments and several daemons: one that "
       "restarts "
       "without them would count its rounds from 0, and learners exchange its fragments alone until they are "
       "as "
       "far as the others"},
      {R"({"policy": {"type": "sync", "grace_ms": 9}})",
       "policy.grace_ms: no key of type 'sync'; valid keys: type, aggregator, backup_trainers, "
       "start_trainers, quorum, round_timeout_ms, on_timeout, clip"},
      {R"({"exit_when_done": "yes"})", "exit_when_done: must be true or false, not \"yes\""},
      {R"({"save": 1})", "save: must be a string, not 1"},
      {R"({"log": {"level": "loud"}})",
       R"(log.level: must be one of "trace", "debug", "info", "warn", "error", "off", not "loud")"},
      {R"({"log": {"format": "xml"}})", R"(log.format: must be one of "text", "json", not "xml")"},
      {R"({"limits": {"message_bytes": 1024}})",
       "limits.message_bytes: must be an integer from 65536 to 67108864, not 1024"},
      {R"({"limits": {"slice_bytes": 5000}})", "limits.slice_bytes: must be a multiple of 64, not 5000"},
      {R"({"limits": {"message_bytes": 65536}})",
       "limits.slice_bytes: must be at least 4096 less than message_bytes (65536), not 4194304"},
      {R"({"limits": {"outgoing_bytes": 65536}})",
       "limits.slice_bytes: must be at least 4096 less than outgoing_bytes (65536), not 4194304"},
      {R"({"limits": {"in_flight_bytes": 1000000}})",
       "limits.in_flight_bytes: must be at least message_bytes (8388608), not 1000000"},
      {R"({"limits": {"all_rings_bytes": 1000}})",
       "limits.all_rings_bytes: must be at least ring_bytes (67108864), not 1000"},
      {R"({"limits": {"calls": 1}})", "limits.calls: must be an integer from 16 to 1000000, not 1"},
      {R"({"limits": {"read_timeout_ms": 0}})",
       "limits.read_timeout_ms: must be an integer from 1 to 86400000, not 0"},
  }));
  INFO(text);
  CHECK(problem(text) == message);
}

TEST_CASE("limits on a slow round require a setting that they apply to") {
  CHECK(read(R"({"policy": {"type": "sync", "round_timeout_ms": 9, "on_timeout": "fail"}})").ok());
  const auto alone = read(R"({"policy": {"type": "sync", "on_timeout": "fail"}})");
  REQUIRE_FALSE(alone.ok());
  CHECK(alone.message() == "policy.on_timeout: requires round_timeout_ms");
}

TEST_CASE("each wrong model gets its one-line error") {
  auto [model, message] = GENERATE(table<std::string, std::string>({
      {R"(null)", "model: must be an object, not null"},
      {R"({})", "model: needs 'tensors', 'tables' or 'file'"},
      {R"({"file": "a", "tensors": [{"name": "w", "shape": [2]}]})",
       "model: holds 'tensors' or 'tables', and 'file'; give only one of the two"},
      {R"({"file": ""})", "model.file: must be the path of a .safetensors file, not \"\""},
      {R"({"tensors": []})", "model.tensors: the model has neither tensors nor tables"},
      {R"({"tensors": [{"shape": [2]}]})", "model.tensors[0].name: is needed"},
      {R"({"tensors": [{"name": "w"}]})", "model.tensors[0].shape: is needed, as [128, 784]; [] is a scalar"},
      {R"({"tensors": [{"name": "w", "shap": [2]}]})",
       "model.tensors[0].shap: unknown key; did you mean 'shape'?"},
      {R"({"tensors": [{"name": "w", "shape": [2, -1]}]})",
       "model.tensors[0].shape[1]: must be an integer of at least 0, not -1"},
      {R"({"tensors": [{"name": "w", "shape": [0]}]})",
       "model.tensors: tensor 'w' has a dimension of size 0"},
      {R"({"tensors": [{"name": "w", "shape": []}, {"name": "w", "shape": []}]})",
       "model.tensors: tensor 'w' appears twice in the model"},
      {R"({"tensors": [{"name": "w", "shape": [2], "dtype": "f64"}]})",
       R"(model.tensors[0].dtype: must be one of "f32", "bf16", "f16", not "f64")"},
  }));
  INFO(model);
  CHECK(problem("{\"model\": " + model + "}") == message);
}

TEST_CASE("flags override the file") {
  testing::TempDir dir;
  auto env = makePosixEnv();
  testing::writeFile(dir.file("c.json"), R"({
    // a comment
    "listen": ["tcp://a:1", "tcp://b:2"], "devices": ["cuda:0"], "policy": {"type": "hogwild"}})");
  auto loaded = loadDaemonConfig(
      *env, dir.file("c.json"),
      {.listen = {"unix:///tmp/s"},
       .device = "cpu",
       .assignments = {"policy.type=locked", "optimizer.lr=0.5", "limits.drain_ms=7", "limits.drain_ms=8"}});
  PSD_REQUIRE_OK(loaded);
  const DaemonConfig& config = loaded->config;
  REQUIRE(config.listen.size() == 1);
  CHECK(config.listen[0].path == "/tmp/s");
  CHECK(config.devices == std::vector<DeviceChoice>{DeviceChoice{DeviceChoice::Kind::cpu}});
  CHECK(config.groups.back().policy.type == "locked");
  CHECK(config.groups.back().optimizer.fullLearningRate == 0.5);
  CHECK(config.limits.drainMs == 8);
}

TEST_CASE("an error names the file or the flag that caused it") {
  CHECK(problemWith({.listen = {"tcp://a:1", "a:2"}, .insecure = true}) ==
        "--listen a:2: listen[1]: address 'a:2': unknown scheme; write tcp://HOST:PORT, "
        "tls://HOST:PORT or unix:///PATH");
  CHECK(problemWith({.device = "tpu"}) ==
        R"(--device tpu: device: must be "auto", "cpu" or "cuda:N" with N from 0 to 63, not "tpu")");
  CHECK(problemWith({.assignments = {"policy.tpye=locked"}}) ==
        "--set policy.tpye=locked: policy.tpye: unknown key; did you mean 'type'?");
  CHECK(problemWith({.assignments = {"log={\"level\": 3}"}}) ==
        "--set log={\"level\": 3}: log.level: must be one of \"trace\", \"debug\", \"info\", "
        "\"warn\", \"error\", \"off\", not 3");
  CHECK(problemWith({.assignments = {"log.file.x=1"}}) ==
        "--set log.file.x=1: log.file: must be a string, not an object");
  CHECK(problemWith({.assignments = {"shards.x=1", "threads=2"}}) ==
        "--set shards.x=1: shards: must be an integer from 1 to 65536, not an object");
  CHECK(problemWith({.assignments = {"tables.x=1"}}) ==
        "--set tables.x=1: tables: must be a list of objects, not an object");
  CHECK(problemWith({.assignments = {"log.a\"b=1"}}) ==
        "--set log.a\"b=1: log.a\\\"b: unknown key; valid keys: level, format, file");
  CHECK(problemWith({.assignments = {"model.name=m"}}) ==
        "--set model.name=m: model: needs 'tensors', 'tables' or 'file'");
  CHECK(problemWith({.assignments = {"durability.type=log", "threads=2"}})
            .starts_with("--set durability.type=log: durability.path: is needed"));
  CHECK(problemWith({.device = "cpu", .assignments = {"policy.type=diloco", "threads=2"}})
            .starts_with("--set policy.type=diloco: optimizer: must be given"));
  CHECK(problemWith({.index = "one"}).starts_with("--index one: index: "));
  CHECK(problemWith({.assignments = {"shards"}}) ==
        "--set 'shards': write KEY=VALUE, as in policy.type=locked");

  testing::TempDir dir;
  auto env = makePosixEnv();
  std::string path = dir.file("c.json");
  testing::writeFile(path, R"({"shards": 0})");
  CHECK(loadDaemonConfig(*env, path).message() ==
        path + ": shards: must be an integer from 1 to 65536, not 0");
  CHECK(loadDaemonConfig(*env, path, {.assignments = {"threads=1"}}).message() ==
        path + ": shards: must be an integer from 1 to 65536, not 0");
  CHECK(loadDaemonConfig(*env, path, {.assignments = {"policy.type=diloco"}}).message() ==
        path + ": shards: must be an integer from 1 to 65536, not 0");
  testing::writeFile(path, R"({"model": {}})");
  CHECK(loadDaemonConfig(*env, path, {.assignments = {"model.name=m"}}).message() ==
        path + ": model: needs 'tensors', 'tables' or 'file'");
  testing::writeFile(path, "[1]");
  CHECK(loadDaemonConfig(*env, path, {.assignments = {"threads=1"}}).message() ==
        path + ": the configuration: must be an object, not a list");
  CHECK(loadDaemonConfig(*env, dir.file("none.json")).message() ==
        "'" + dir.file("none.json") + "': cannot open: No such file or directory");
}

TEST_CASE("null removes a key, and one that is not given may be removed") {
  const auto changed = [](const char* assignment) {
    return readChanged(*parseJson(R"({"auth": {}, "optimizer": {"lr": 0.5}})", "test"), assignment);
  };
  const auto removed = changed("optimizer.lr=null");
  PSD_REQUIRE_OK(removed);
  CHECK(removed->config.groups.back().optimizer.fullLearningRate == 0.01);
  const auto open = changed("auth=null");
  PSD_REQUIRE_OK(open);
  CHECK_FALSE(open->config.auth);
  for (const char* const absent :
       {"tls=null", "tls.client_ca=null", "limits.calls=null", "model.tensors=null"}) {
    const auto same = changed(absent);
    PSD_REQUIRE_OK(same);
    CHECK_FALSE(same->config.tls);
  }
  CHECK(changed("tsl=null").message() == "tsl: unknown key; did you mean 'tls'?");
  CHECK(problemWith({.assignments = {"engine=null", "limits.cals=null"}}) ==
        "--set limits.cals=null: limits.cals: unknown key; did you mean 'calls'?");
}

TEST_CASE("a type that other keys of its object do not go with is set by the whole object") {
  const auto problemOf = [](const char* assignment) {
    return readChanged(*parseJson(R"({"policy": {"type": "sync", "quorum": 2}})", "test"), assignment)
        .message();
  };
  CHECK(problemOf("policy.type=locked") ==
        "policy.quorum: no key of type 'locked'; valid keys: type, staleness, delay_compensation, clip; to "
        "change all keys of 'policy' with its type, set the object: policy={\"type\": …}");
  CHECK(problemOf("policy.tpye=locked") == "policy.tpye: unknown key; did you mean 'type'?");
  CHECK(problemOf("policy.type=lokced").ends_with("; did you mean \"locked\"?"));
  CHECK(problemOf("groups[0].policy.type=locked") == "groups[0]: unknown key; did you mean 'groups'?");
  CHECK(problemOf("plicy.type=locked") == "plicy: unknown key; did you mean 'policy'?");
}

TEST_CASE("every key can be set, and completed with the values that have names") {
  const auto keys = settableKeys();
  const auto choicesOf = [&](std::string_view path) {
    const auto found = std::ranges::find(keys, path, &SettableKey::path);
    REQUIRE(found != keys.end());
    return found->choices;
  };
  using Names = std::vector<std::string>;
  CHECK(choicesOf("auth") == Names{});
  CHECK(choicesOf("limits") == Names{});
  CHECK(choicesOf("policy.aggregator").front() == "mean");
  CHECK(choicesOf("policy.late") == Names{"drop"});
  CHECK(choicesOf("policy.grace_ms") == Names{"auto"});
  CHECK(choicesOf("durability.every_bytes") == Names{"auto"});
  CHECK(choicesOf("durability.resume") == Names{"auto", "none"});
  CHECK(choicesOf("device") == Names{"auto", "cpu", "cuda:0"});
  CHECK(choicesOf("codecs.pull.default").front() == "none");
  CHECK(std::ranges::count(keys, "policy.aggregator", &SettableKey::path) == 1);
}

TEST_CASE("device names have one canonical form each") {
  for (std::string text : {"auto", "cpu", "cuda:0", "cuda:63"}) {
    auto device = parseDevice(text);
    PSD_REQUIRE_OK(device);
    CHECK(device->toString() == text);
  }
  for (std::string text :
       {"", "CPU", "cuda", "cuda:", "cuda:-1", "cuda:00", "cuda:1x", "cuda:64", "cuda:99999999999"}) {
    INFO(text);
    CHECK_FALSE(parseDevice(text).ok());
  }
}

TEST_CASE("every example loads") {
  auto env = makePosixEnv();
  size_t examples = 0;
  for (const auto& file : std::filesystem::directory_iterator(PSD_SOURCE_DIR "/configs")) {
    if (file.is_directory() || file.path().filename() == "psd.schema.json") continue;
    INFO(file.path());
    PSD_REQUIRE_OK(loadDaemonConfig(*env, file.path().string()));
    examples++;
  }
  CHECK(examples >= 4);
}

}  // namespace psd::config_daemon_test

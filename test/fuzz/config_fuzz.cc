// A configuration file, and a --set override.

#include "common/config/json_file.h"
#include "server/config/daemon_config.h"
#include "test/fuzz/fuzz_list.h"

namespace psd::fuzz {
namespace {
namespace config_fuzz {

/// Input that starts with '=' is an assignment, any other a file.
void run(Bytes input) {
  const std::string_view text = textOf(input);
  auto document = nlohmann::ordered_json::object();
  if (text.starts_with('=')) {
    if (!applyOverride(document, text.substr(1)).ok()) return;
  } else {
    auto parsed = parseJson(text, "input");
    if (!parsed.ok()) return;
    document = std::move(*parsed);
  }
  const auto loaded = readDaemonConfig(std::move(document));
  if (!loaded.ok()) {
    require(!loaded.message().empty(), "the error of a rejected configuration is not empty");
    require(loaded.message().find('\n') == std::string::npos, "an error is one line");
    return;
  }
  // `psd check` prints the effective configuration; that is a configuration too, and the same one.
  const auto again = readDaemonConfig(loaded->effective);
  require(again.ok(), "the effective configuration can be read");
  require(again->effective == loaded->effective, "the effective configuration is complete");
}

std::vector<std::string> seeds() {
  return {
      "{}",
      R"({"listen": ["tcp://localhost:5500", "unix:///tmp/psd.sock"], "device": "cpu", "shards": 4, "threads": 2,
          "policy": {"type": "sync", "aggregator": {"type": "trimmed_mean", "trim": 1}, "quorum": 3,
                     "round_timeout_ms": 100, "on_timeout": "fail", "backup_trainers": 1},
          "optimizer": {"type": "sgd", "lr": 0.03, "momentum": 0.9, "nesterov": true}, "world_size": 2})",
      R"({"policy": {"type": "bounded_staleness"}, // a comment
          "optimizer": {"type": "adamw", "lr": {"schedule": "cosine"}}, "exit_when_done": true,
          "durability": {"type": "log", "path": "saved", "every_updates": 7, "keep": 2, "resume": "none"}})",
      R"({"groups": [{"tensors": ["fc*"], "policy": {"type": "locked"}, "optimizer": {"type": "adagrad"}}],
          "model": {"name": "m", "tensors": [{"name": "w", "shape": [2, 3]}]}, "save": "model.safetensors",
          "codecs": {"push": {"allowed": ["int8", "topk"], "default": "topk:fraction=0.1"}},
          "limits": {"slice_bytes": 65536, "connections": 16}, "log": {"level": "debug", "format": "json"}})",
      R"({"engine": {"type": "etcd", "prefix": "/psd/mnist", "endpoints": ["http://localhost:2379", "https://[::1]"],
                     "user": "psd", "password_file": "p", "tls": {"ca": "a", "certificate": "b", "key": "c"}}})",
      "=optimizer.lr=0.05",
      R"(=durability={"type": "checkpoint", "path": "x"})",
  };
}

}  // namespace config_fuzz
}  // namespace

const FuzzTarget kConfigTarget{"config", "a configuration file or an assignment of --set", config_fuzz::run,
                               config_fuzz::seeds};

}  // namespace psd::fuzz

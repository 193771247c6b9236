#include "trainer/executor/executor_config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/config/json_file.h"
#include "common/config/object_reader.h"
#include "trainer/model/device.h"

namespace psd {
namespace {

constexpr uint64_t kThreadsMax = 1024;
constexpr uint64_t kMicroBatchesMax = 1024;
constexpr uint64_t kTimeMsMax = 24ull * 3600 * 1000;
constexpr uint64_t kBytesMax = 1ull << 50;
constexpr uint64_t kMessageBytesMin = 256u << 10, kMessageBytesMax = 256u << 20;

std::string element(std::string_view key, size_t index) {
  return std::string(key) + "[" + std::to_string(index) + "]";
}

std::vector<std::string> readServers(ObjectReader& in) {
  std::vector<std::string> servers =
      in.has("server") ? in.textOrTexts("server") : in.texts("server", {"tcp://localhost:5500"});
  if (servers.empty()) in.fail("server", "must name at least one address, as \"unix:///tmp/psd.sock\"");
  for (size_t i = 0; i < servers.size(); i++) {
    const auto address = parseAddress(servers[i]);
    if (!address.ok()) in.fail(servers.size() > 1 ? element("server", i) : "server", address.message());
  }
  return servers;
}

std::optional<TlsServerFiles> readTls(ObjectReader& root) {
  if (!root.has("tls")) return {};
  ObjectReader in = root.object("tls");
  const auto needed = [&in](std::string_view key, std::string_view what) {
    const std::string path = in.path(key, "");
    if (path.empty()) in.fail(key, "is needed: " + std::string(what) + ", a file in PEM format");
    return path;
  };
  TlsServerFiles files;
  files.certificate = needed("certificate", "the executor's certificate");
  files.key = needed("key", "the certificate's private key");
  files.clientCa = needed("client_ca", "the authorities that sign trainers' certificates");
  files.requireClient = true;
  return files;
}

/// Whether peers at the address are local or authenticate themselves with a certificate.
Status checkPeers(const Address& address, bool hasTls, std::string_view mayDo) {
  if (address.tls && !hasTls) {
    return {ErrorCode::invalidArgument, "tls:// needs `tls`, with certificate, key and client_ca"};
  }
  if (address.tls || isLocal(address)) return {};
  return {ErrorCode::invalidArgument,
          address.toString() + " lets other machines in, and every peer there " + std::string(mayDo) +
              "; expected unix:///PATH, tcp://localhost:PORT, or tls://HOST:PORT with `tls`, where peers "
              "show a certificate"};
}

std::vector<Address> readAddresses(ObjectReader& in, const std::vector<std::string>& texts, bool hasTls,
                                   std::string_view mayDo) {
  std::vector<Address> listen;
  for (size_t i = 0; i < texts.size(); i++) {
    auto address = parseAddress(texts[i]);
    const Status fits = address.ok() ? checkPeers(*address, hasTls, mayDo) : address.status();
    if (fits.ok()) {
      listen.push_back(*std::move(address));
    } else {
      in.fail(element("listen", i), fits.message());
    }
  }
  return listen;
}

std::vector<Address> readListen(ObjectReader& in, bool hasTls) {
  const std::vector<std::string> texts = in.texts("listen", {"tcp://localhost:5600"});
  if (texts.empty()) in.fail("listen", "must hold at least one address, as \"tcp://localhost:5600\"");
  return readAddresses(in, texts, hasTls, "can train");
}

/// Converts stages given as a layer's name to objects.
Result<nlohmann::ordered_json> withStageObjects(nlohmann::ordered_json json) {
  if (!json.is_object() || !json.contains("stages") || !json["stages"].is_array()) return json;
  for (size_t i = 0; i < json["stages"].size(); i++) {
    auto& stage = json["stages"][i];
    if (stage.is_string()) stage = nlohmann::ordered_json{{"layer", stage}};
    if (stage.is_object()) continue;
    return Error{ErrorCode::invalidArgument, element("stages", i) +
                                                 ": must be a layer's name, or an object with `layer` and "
                                                 "`device`, not " +
                                                 describeJson(stage)};
  }
  return json;
}

std::string readDevice(ObjectReader& in, const std::string& fallback, WeightsMode weights) {
  std::string device = in.text("device", fallback);
  const auto chosen = selectDevice(device, 0, std::numeric_limits<int>::max());
  if (!chosen.ok()) {
    in.fail("device", chosen.message());
  } else if (device != "auto" && !chosen->isCpu() && weights == WeightsMode::live) {
    in.fail("device",
            device +
                " cannot be combined with \"weights\": \"live\": the daemon's own memory is computed "
                "over on the CPU alone; expected cpu, or \"stashed\"");
  }
  return device;
}

std::vector<StageConfig> readStages(ObjectReader& root, const ExecutorConfig& config) {
  std::vector<StageConfig> stages;
  for (ObjectReader& in : root.objects("stages")) {
    const std::string layer = in.text("layer", "");
    if (layer.empty()) in.fail("layer", "is needed: the first layer of the stage");
    stages.push_back({layer, readDevice(in, config.device, config.weights)});
  }
  return stages;
}

std::chrono::milliseconds readTime(ObjectReader& in, std::string_view key, std::chrono::milliseconds fallback,
                                   uint64_t least) {
  return std::chrono::milliseconds(
      in.integer(key, static_cast<uint64_t>(fallback.count()), least, kTimeMsMax));
}

uint32_t readCount(ObjectReader& in, std::string_view key, uint32_t fallback, uint64_t most) {
  return static_cast<uint32_t>(in.integer(key, fallback, 1, most));
}

ExecutorHttpConfig readHttp(ObjectReader in, bool hasTls) {
  ExecutorHttpConfig http;
  http.listen = readAddresses(in, in.texts("listen", {}), hasTls, "can read the status");
  http.connections = readCount(in, "connections", http.connections, 4096);
  http.timeout = readTime(in, "timeout_ms", http.timeout, 100);
  return http;
}

}  // namespace

Result<ExecutorConfig> readExecutorConfig(nlohmann::ordered_json& json) {
  PSD_ASSIGN_OR_RETURN(nlohmann::ordered_json given, withStageObjects(json));
  ObjectReader in(std::move(given));
  ExecutorConfig config;
  config.servers = readServers(in);
  config.tls = readTls(in);
  config.listen = readListen(in, config.tls.has_value());
  config.http = readHttp(in.object("http"), config.tls.has_value());
  config.module = in.text("module", "mnist_cnn");
  config.seed = in.integer("seed", config.seed, 0, INT64_MAX);
  config.workers = readCount(in, "workers", config.workers, kThreadsMax);
  config.threadsPerWorker = readCount(in, "threads_per_worker", config.threadsPerWorker, kThreadsMax);
  config.weights = in.choice("weights", "stashed", {"stashed", "live"}) == "live" ? WeightsMode::live
                                                                                  : WeightsMode::stashed;
  config.device = readDevice(in, config.device, config.weights);
  config.stages = readStages(in, config);
  if (in.has("micro_batches") && config.stages.empty()) in.fail("micro_batches", "requires `stages`");
  if (!config.stages.empty()) {
    config.microBatches = readCount(in, "micro_batches", config.microBatches, kMicroBatchesMax);
  }
  config.exclusive = in.boolean("exclusive", config.exclusive);
  config.age = readTime(in, "age_ms", config.age, 1);
  config.connectTimeout = readTime(in, "connect_timeout_ms", config.connectTimeout, 1);
  config.queue = readCount(in, "queue", config.queue, 1u << 20);
  config.contexts = readCount(in, "contexts", config.contexts, 1u << 20);
  config.trainers = readCount(in, "trainers", config.trainers, 1u << 16);
  config.connections = readCount(in, "connections", config.connections, 1u << 16);
  config.messageBytes = in.integer("message_bytes", config.messageBytes, kMessageBytesMin, kMessageBytesMax);
  config.memoryBytes = in.integer("memory_bytes", config.memoryBytes, 1u << 20, kBytesMax);
  config.context = readTime(in, "context_ms", config.context, 1);
  config.silence = readTime(in, "silence_ms", config.silence, 100);
  PSD_RETURN_IF_ERROR(in.finish());
  json = in.effective();
  return config;
}

}  // namespace psd

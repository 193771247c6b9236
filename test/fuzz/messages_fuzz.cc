// A peer's messages: a daemon in this process reads them from a socket. Seeds are whole sessions of every
// kind of peer, so that mutations reach every call.

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <kj/async-io.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "server/client/admin_client.h"
#include "server/daemon/server.h"
#include "test/fuzz/fuzz_list.h"
#include "test/fuzz/rpc_script.h"
#include "test/support/temp_dir.h"

namespace psd::fuzz {
namespace {
namespace messages_fuzz {

using Json = nlohmann::ordered_json;

const ModelSpec kModel{"fuzzed",
                       {{"w", DType::f32, {32, 16}}, {"b", DType::f32, {16}}},
                       {{"t", 3, {RowInitial::Kind::uniform, 0.1f, 1}}}};
constexpr uint32_t kRowShard = 2;  // after two dense shards
constexpr uint64_t kRowIds[] = {0, 7, UINT64_MAX};
constexpr uint64_t kShardElements = 256;  // of the first of two shards
constexpr int kSilenceMs = 2;             // after this time without an answer no more are waited for
constexpr std::chrono::seconds kTimeout{60};

/// A daemon on a Unix socket that restarts when a peer stops it, until this is destroyed.
class FuzzedDaemon {
 public:
  explicit FuzzedDaemon(const std::string& folder) : address_("unix://" + folder + "/psd.sock") {
    thread_ = std::thread([this] {
      while (!ending_) serve();
      ended_ = true;
    });
  }
  ~FuzzedDaemon() {
    ending_ = true;
    // It may be about to restart, and cannot be reached then.
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (!ended_) {
      require(std::chrono::steady_clock::now() < deadline, "the daemon ends on request");
      (void)stopDaemon(parseAddress(address_).value(), "the tests are over", kTimeout);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    thread_.join();
  }
  FuzzedDaemon(const FuzzedDaemon&) = delete;
  FuzzedDaemon& operator=(const FuzzedDaemon&) = delete;

  /// Waits while it restarts.
  OwnFd connect() const {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    while (true) {
      auto fd = connectTo(parseAddress(address_).value(), kTimeout);
      if (fd.ok()) return std::move(*fd);
      require(std::chrono::steady_clock::now() < deadline, "the daemon can be reached");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Json status() const {
    connect();
    const auto text = fetchStatusJson(parseAddress(address_).value(), kTimeout);
    require(text.ok(), "the daemon returns its status");
    return Json::parse(*text);
  }

 private:
  LoadedConfig config() const {
    auto loaded = readDaemonConfig(Json{{"listen", {address_}},
                                        {"device", "cpu"},
                                        {"threads", 1},
                                        {"shards", 2},
                                        {"policy", {{"type", "locked"}}},
                                        {"optimizer", {{"type", "adagrad"}, {"lr", 0.1}}},
                                        {"limits",
                                         {{"drain_ms", 20},
                                          {"model_bytes", 1 << 20},
                                          {"message_bytes", 1 << 20},
                                          {"slice_bytes", 1 << 16}}}});
    require(loaded.ok(), "the daemon's configuration is valid");
    return *std::move(loaded);
  }
  void serve() const {
    auto io = kj::setupAsyncIo();
    const auto env = makePosixEnv();
    Server server(io, config(), {makeCpuBackend()}, *env, [this] { return Result(config()); });
    require(server.start().ok(), "the daemon starts");
    server.run([] { return Status(); }).wait(io.waitScope);
  }

  const std::string address_;
  std::atomic<bool> ending_ = false, ended_ = false;
  std::thread thread_;
};

const FuzzedDaemon& daemon() {
  static const testing::TempDir folder;
  static const FuzzedDaemon daemon(folder.path());
  return daemon;
}

/// Sends all of it, takes the answers, closes its sending side, and waits for the daemon to disconnect.
void run(Bytes input) {
  const OwnFd peer = daemon().connect();
  fcntl(peer.get(), F_SETFL, 0);  // blocking
  const timeval limit{kTimeout.count(), 0};
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(peer.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  while (!input.empty()) {
    const ssize_t sent = send(peer.get(), input.data(), input.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // it has disconnected already
    input = input.subspan(static_cast<size_t>(sent));
  }
  // Calls that a peer makes are dropped when it disconnects, so it stays as long as there are answers.
  char answer[4096];
  ssize_t got = 1;
  pollfd readable{peer.get(), POLLIN, 0};
  while (got > 0 && poll(&readable, 1, kSilenceMs) > 0) got = recv(peer.get(), answer, sizeof answer, 0);
  shutdown(peer.get(), SHUT_WR);
  while (got > 0) got = recv(peer.get(), answer, sizeof answer, 0);
  require(got == 0 || errno != EAGAIN, "the daemon disconnects when its peer has sent everything");
}

// --- Seeds ----------------------------------------------------------------------------------------------

using schema::Admin;
using schema::Login;
using schema::Reader;
using schema::Reading;
using schema::Trainer;
using schema::Training;

constexpr int kItself = -1,
              kFirstPointer = 0;  // a session or a reader is its answer's first pointer
// The content of login()'s answer, by its pointers.
constexpr int kReading = 2, kTraining = 3, kAdmin = 4;

uint32_t login(RpcScript& script) {
  return script.call<Login, Login::LoginParams>(script.bootstrap(), kItself, "login", [](auto params) {
    params.setProtocolVersion(wire::kProtocolVersion);
    params.setPeer("a fuzzer");
  });
}

uint32_t join(RpcScript& script, uint32_t login, const char* codec) {
  return script.call<Training, Training::JoinParams>(login, kTraining, "join", [&](auto params) {
    params.setRank(0);
    params.setWorldSize(1);
    params.setHost("here");
    params.setPid(1);
    params.setCodec(codec);
    wire::writeModel(kModel, params.initModel());
  });
}

capnp::Data::Reader dataOf(const std::vector<float>& values) {
  return {reinterpret_cast<const kj::byte*>(values.data()), values.size() * sizeof(float)};
}

uint64_t elementsOf(uint32_t shard) { return shard == 0 ? kShardElements : 528 - kShardElements; }

void bringValues(RpcScript& script, uint32_t session) {
  for (uint32_t shard : {0u, 1u}) {
    const std::vector<float> values(elementsOf(shard), 0.5f);
    script.call<Trainer, Trainer::InitializeParams>(session, kFirstPointer, "initialize", [&](auto params) {
      params.setShard(shard);
      params.setValues(dataOf(values));
    });
  }
  script.call<Trainer, Trainer::InitializedParams>(session, kFirstPointer, "initialized", [](auto) {});
}

void push(RpcScript& script, uint32_t session, uint64_t step, uint32_t shard, const std::string& spec) {
  const std::vector<float> gradient(elementsOf(shard), 0.25f);
  const auto codec = makeCodec(spec.empty() ? "none" : spec);
  std::vector<uint64_t> code(((*codec)->encodedBytes(gradient.size()) + 7) / 8);
  auto* const bytes = reinterpret_cast<std::byte*>(code.data());
  require((*codec)->encode(gradient, 1, bytes).ok(), "a small gradient can be encoded");
  script.call<Trainer, Trainer::PushParams>(session, kFirstPointer, "push", [&](auto params) {
    auto head = params.initHead();
    head.setStep(step);
    head.setShard(shard);
    head.setSamples(8);
    head.setParts(3);
    head.setTotal(gradient.size());
    params.setGradient({reinterpret_cast<const kj::byte*>(bytes), (*codec)->encodedBytes(gradient.size())});
    if (spec.empty()) return;
    params.setCodec(std::string((*codec)->name()).c_str());
    params.setCount(static_cast<uint32_t>(gradient.size()));
  });
}

void pull(RpcScript& script, uint32_t reader, const char* codec) {
  script.call<Reader, Reader::PullParams>(reader, kFirstPointer, "pull", [&](auto params) {
    params.setPull(1);
    params.setCount(kShardElements);
    params.setCodec(codec);
  });
}

/// Sets the rows of a call.
void nameRows(auto& params, uint64_t rows) {
  if (rows > 0) {
    auto run = params.initRuns(1)[0];
    run.setCount(static_cast<uint32_t>(rows));
  }
  params.setIds({reinterpret_cast<const kj::byte*>(kRowIds), rows * sizeof(uint64_t)});
}

void pushRows(RpcScript& script, uint32_t session, uint64_t step, uint64_t rows) {
  const std::vector<float> gradient(rows * 3, 0.25f);
  script.call<Trainer, Trainer::PushRowsParams>(session, kFirstPointer, "pushRows", [&](auto params) {
    auto head = params.initHead();
    head.setStep(step);
    head.setShard(kRowShard);
    head.setSamples(8);
    head.setParts(3);
    head.setTotal(rows);
    nameRows(params, rows);
    params.setGradient(dataOf(gradient));
  });
}

void pullRows(RpcScript& script, uint32_t reader) {
  script.call<Reader, Reader::PullRowsParams>(reader, kFirstPointer, "pullRows", [&](auto params) {
    params.setPull(1);
    params.setShard(kRowShard);
    nameRows(params, std::size(kRowIds));
  });
}

std::string trainer(const char* codec) {
  RpcScript script;
  const uint32_t session = join(script, login(script), codec);
  script.call<Trainer, Trainer::AwaitModelParams>(session, kFirstPointer, "awaitModel", [](auto) {});
  bringValues(script, session);
  script.call<Trainer, Trainer::NoticeParams>(session, kFirstPointer, "notice", [](auto) {});
  pull(script, session, "");
  for (uint64_t step : {1, 2}) {
    for (uint32_t shard : {0u, 1u}) push(script, session, step, shard, codec);
    pushRows(script, session, step, step == 1 ? std::size(kRowIds) : 0);
    pullRows(script, session);
  }
  script.call<Trainer, Trainer::OpenRingParams>(session, kFirstPointer, "openRing",
                                                [](auto params) { params.setBytes(1 << 16); });
  script.call<Trainer, Trainer::PushSharedParams>(session, kFirstPointer, "pushShared", [](auto params) {
    params.initHead().setStep(3);
    params.getHead().setParts(3);
    params.getHead().setTotal(kShardElements);
    params.setCount(kShardElements);
  });
  script.call<Trainer, Trainer::PushRowsSharedParams>(session, kFirstPointer, "pushRowsShared",
                                                      [](auto params) {
                                                        params.initHead().setStep(3);
                                                        params.getHead().setShard(kRowShard);
                                                        params.getHead().setParts(3);
                                                        params.getHead().setTotal(std::size(kRowIds));
                                                        nameRows(params, std::size(kRowIds));
                                                        params.setAt(1 << 12);
                                                      });
  script.call<Trainer, Trainer::PullRowsSharedParams>(session, kFirstPointer, "pullRowsShared",
                                                      [](auto params) {
                                                        params.setShard(kRowShard);
                                                        nameRows(params, std::size(kRowIds));
                                                        params.setAt(1 << 13);
                                                      });
  script.call<Trainer, Trainer::LeaveParams>(session, kFirstPointer, "leave", [](auto) {});
  return script.bytes();
}

std::string observer(const char* codec) {
  RpcScript script;
  const uint32_t granted = login(script);
  script.call<Reading, Reading::PingParams>(granted, kReading, "ping", [](auto) {});
  const uint32_t reader = script.call<Reading, Reading::ObserveParams>(
      granted, kReading, "observe", [](auto params) { wire::writeModel(kModel, params.initModel()); });
  pull(script, reader, codec);
  pullRows(script, reader);
  return script.bytes();
}

std::string operators(bool stop) {
  RpcScript script;
  const uint32_t granted = login(script);
  script.call<Reading, Reading::StatusParams>(granted, kReading, "status", [](auto) {});
  if (!stop) {
    script.call<Admin, Admin::ReloadParams>(granted, kAdmin, "reload", [](auto) {});
  } else {
    script.call<Admin, Admin::StopParams>(granted, kAdmin, "stop",
                                          [](auto params) { params.setReason("fuzzed"); });
  }
  return script.bytes();
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds = {trainer(""), observer(""), observer("fp16"), operators(false),
                                    operators(true)};
  for (std::string_view codec : codecNames()) seeds.push_back(trainer(std::string(codec).c_str()));
  // The first trainer initializes the model; pushes of later ones are in it.
  uint64_t updates = 0;
  for (int i = 0; i < 500 && updates == 0; i++) {
    run(bytesOf(seeds[0]));
    updates = daemon().status()["counters"]["updates"];
  }
  require(updates > 0, "a seed session trains the model");
  return seeds;
}

}  // namespace messages_fuzz
}  // namespace

const FuzzTarget kMessagesTarget{"messages", "what a peer of the daemon sends", messages_fuzz::run,
                                 messages_fuzz::seeds};

}  // namespace psd::fuzz

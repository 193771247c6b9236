#include "server/tools/host_checks.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <fcntl.h>
#include <fmt/format.h>
#include <kj/async-io.h>
#include <sys/timex.h>
#include <unistd.h>

#include "common/os/http_answer.h"
#include "common/os/shared_memory.h"
#include "common/os/socket.h"
#include "common/os/write_whole.h"
#include "common/text/number.h"
#include "common/text/quantity.h"
#include "common/text/text.h"
#include "server/auth/authenticator.h"
#include "server/checkpoint/locked_folder.h"
#include "server/daemon/tls_acceptor.h"
#include "server/engine/etcd.h"
#include "server/limits/descriptor_budget.h"
#include "server/store/backend.h"

namespace psd {
namespace {

namespace fs = std::filesystem;
using Outcome = Finding::Outcome;

constexpr uint64_t kMiB = 1ull << 20, kGiB = 1ull << 30;
constexpr double kClockSecondsMax = 5;
constexpr std::chrono::milliseconds kMemberTimeout{2'000};

/// The whole content of a file of the system; empty if it cannot be read.
std::string contentOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// An error's message without what the check's name says.
std::string without(std::string_view prefix, const std::string& message) {
  return message.starts_with(prefix) ? message.substr(prefix.size()) : message;
}

Finding checkAddress(const std::string& key, const Address& address) {
  const std::string name = key + " " + address.toString();
  const auto listening = listenOn(address);
  if (listening.ok()) return {name, Outcome::ok, "free"};
  return {name, Outcome::fail, without(address.toString() + ": ", listening.message())};
}

Finding checkDescriptors(const DaemonConfig& config) {
  const DescriptorBudget budget = ownDescriptors(config);
  const uint32_t wanted = config.limits.connections;
  if (const Status may = budget.check(); !may.ok()) return {"descriptors", Outcome::fail, may.message()};
  if (const std::string shortfall = budget.shortfall(wanted); !shortfall.empty())
    return {"descriptors", Outcome::warn, shortfall};
  return {"descriptors", Outcome::ok, fmt::format("enough for limits.connections ({})", wanted)};
}

/// The number of bytes in a line "NAME:   N kB".
std::optional<uint64_t> memoryLine(const std::string& text, std::string_view name) {
  const size_t at = text.find(name);
  if (at == std::string::npos) return {};
  return std::strtoull(text.c_str() + at + name.size(), nullptr, 10) << 10;
}

Finding checkMemory(const DaemonConfig& config) {
  uint64_t free = memoryLine(contentOf("/proc/meminfo"), "MemAvailable:").value_or(0);
  // "max" without a limit: then strtoull() yields 0.
  const uint64_t most = std::strtoull(contentOf("/sys/fs/cgroup/memory.max").c_str(), nullptr, 10);
  const uint64_t used = std::strtoull(contentOf("/sys/fs/cgroup/memory.current").c_str(), nullptr, 10);
  if (most > 0) free = std::min(free, most - std::min(most, used));
  const uint64_t model = config.model ? 4 * ModelLayout(config.model->spec).totalElements() : 0;
  const std::string text = bytesText(free) + " available";
  if (model > free) {
    return {
        "memory", Outcome::fail,
        fmt::format("{}, and the model's parameters alone take {}; use a larger machine or several `daemons`",
                    text, bytesText(model))};
  }
  if (free < kGiB) return {"memory", Outcome::warn, text + "; end other programs, or raise the memory limit"};
  return {"memory", Outcome::ok, text};
}

Finding checkHugePages() {
  const std::string mode = contentOf("/sys/kernel/mm/transparent_hugepage/enabled");
  if (mode.empty()) return {"huge pages", Outcome::warn, "the system has none; large models are slower"};
  if (mode.find("[never]") == std::string::npos) return {"huge pages", Outcome::ok, "available"};
  return {"huge pages", Outcome::warn,
          "off, so large models are slower; write 'madvise' to /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding checkSharedMemory() {
  const auto memory = SharedMemory::create("psd-doctor", 64 * kMiB, SharedAccess::readOnly);
  if (memory.ok()) return {"shared memory", Outcome::ok, "available"};
  return {"shared memory", Outcome::warn,
          memory.message() + "; trainers of this machine use messages instead"};
}

Finding checkClock() {
  timex state{};
  const bool synchronized = adjtimex(&state) >= 0 && (state.status & STA_UNSYNC) == 0;
  if (synchronized) return {"clock", Outcome::ok, "synchronized"};
  return {"clock", Outcome::warn,
          "the system does not synchronize it; run chronyd or systemd-timesyncd, unless its host does"};
}

/// The time in the header Date of a member's answer, without TLS.
std::optional<std::time_t> timeAt(const EtcdMember& member) {
  const std::string answer =
      httpAnswer({.host = member.host, .port = member.port}, "/version", kMemberTimeout);
  constexpr std::string_view kDate = "\r\nDate: ";
  const size_t at = answer.find(kDate);
  std::tm parts{};
  if (at == std::string::npos ||
      strptime(answer.c_str() + at + kDate.size(), "%a, %d %b %Y %H:%M:%S", &parts) == nullptr)
    return {};
  return timegm(&parts);
}

Finding checkMemberClock(const EtcdMember& member) {
  const std::string name = "clock of " + member.toString();
  const auto time = timeAt(member);
  if (!time) return {name, Outcome::skip, "no Date in its answer; see the check of etcd"};
  const double apart = std::abs(std::difftime(*time, std::time(nullptr)));
  if (apart <= kClockSecondsMax) return {name, Outcome::ok, "within 5 s"};
  return {name, Outcome::warn,
          fmt::format("{} apart; synchronize both machines' clocks", durationText(apart))};
}

Finding checkEtcd(const EngineConfig& engine) {
  auto io = kj::setupAsyncIo();
  kj::Timer& timer = io.provider->getTimer();
  auto etcd = Etcd::open(io.provider->getNetwork(), timer, engine.etcd);
  if (!etcd.ok()) return {"etcd", Outcome::fail, etcd.message()};
  try {
    const auto read =
        timer
            .timeoutAfter(kMemberTimeout.count() * kj::MILLISECONDS, (*etcd)->read(engine.prefix + "/doctor"))
            .wait(io.waitScope);
    if (read.ok()) return {"etcd", Outcome::ok, "answers"};
    return {"etcd", Outcome::fail, without("etcd: ", read.message()) + "; see engine.etcd"};
  } catch (const kj::Exception&) {
    return {"etcd", Outcome::fail,
            "no answer within " + durationText(kMemberTimeout) + "; start it, see engine.etcd"};
  }
}

/// Writes and syncs some MiB there, and removes them; nullopt if that fails, with errno set.
std::optional<double> bytesPerSecond(const std::string& folder) {
  constexpr size_t kBytes = 16 * kMiB;
  std::string path = folder + "/psd-doctor.XXXXXX";
  const OwnFd file(mkostemp(path.data(), O_CLOEXEC));
  if (file.get() < 0) return {};
  unlink(path.c_str());
  const std::string text(kBytes, 'x');
  const auto begin = std::chrono::steady_clock::now();
  if (!writeWhole(file.get(), text) || fsync(file.get()) != 0) return {};
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(kBytes) / std::max(taken.count(), 1e-6);
}

/// A check whose outcome is that of a step of the daemon's start.
Finding checkStart(const std::string& name, const Status& step) {
  return step.ok() ? Finding{name, Outcome::ok, "usable"} : Finding{name, Outcome::fail, step.message()};
}

/// The folder, or the nearest one above it that exists.
std::string existing(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored);
  while (!fs::exists(path, ignored) && path.has_parent_path() && path != path.root_path())
    path = path.parent_path();
  return path;
}

/// Room and speed of the disk of a folder; `name` is the key that names the folder.
Finding checkDisk(const std::string& name, const std::string& folder, DiskKey key) {
  constexpr double kSlow = 50e6;
  const std::string at = existing(folder);
  const std::optional<double> speed = bytesPerSecond(at);
  if (!speed) {
    return {
        name, Outcome::fail,
        fmt::format("{}: {}; free space there, or grant psd's user write access", at, std::strerror(errno))};
  }
  Finding room = checkRoom(name, diskRoom(at).value_or(DiskRoom()), key);
  room.text = fmt::format("{}/s with sync, {}", bytesText(static_cast<uint64_t>(*speed)), room.text);
  if (room.outcome != Outcome::ok || *speed >= kSlow) return room;
  return {name, Outcome::warn, room.text + "; checkpoints and pushes with a log wait for this disk"};
}

/// Whether no other daemon has locked the folder, and its disk's room and speed.
void checkFolder(Env& env, const std::string& folder, std::vector<Finding>& all) {
  std::error_code ignored;
  if (fs::exists(folder + "/lock", ignored)) {
    all.push_back(checkStart("lock", LockedFolder::take(env, folder).status()));
  }
  all.push_back(checkDisk("durability.path", folder, DiskKey::durability));
}

}  // namespace

Finding checkRoom(const std::string& name, const DiskRoom& room, DiskKey key) {
  const std::string text = fmt::format("{} free of {}", bytesText(room.free), bytesText(room.size));
  if (room.free >= kGiB) return {name, Outcome::ok, text};
  const char* const other =
      key == DiskKey::durability ? "lower durability.keep" : "name a file on another disk in `save`";
  return {name, Outcome::warn, fmt::format("{}; free space there, or {}", text, other)};
}

std::vector<Finding> checkHost(Env& env, const DaemonConfig& config) {
  std::vector<Finding> all;
  for (const Address& address : config.listen) all.push_back(checkAddress("listen", address));
  for (const Address& address : config.http.listen) all.push_back(checkAddress("http.listen", address));
  if (config.auth) all.push_back(checkStart("auth", AuthRules::read(config.auth).status()));
  if (config.tls) all.push_back(checkStart("tls", TlsAcceptor::read(config.tls).status()));
  for (const DeviceChoice& choice : config.devices) {
    if (choice.kind != DeviceChoice::Kind::cuda) continue;
    all.push_back(
        checkStart(fmt::format("device cuda:{}", choice.index), makeCudaBackend(choice.index).status()));
  }
  all.push_back(checkDescriptors(config));
  all.push_back(checkMemory(config));
  all.push_back(checkSharedMemory());
  all.push_back(checkHugePages());
  all.push_back(checkClock());
  if (config.engine) {
    all.push_back(checkEtcd(*config.engine));
    for (const EtcdMember& member : config.engine->etcd.members) {
      if (!member.tls) all.push_back(checkMemberClock(member));
    }
  }
  if (config.durability.enabled()) checkFolder(env, config.durability.path, all);
  if (!config.save.empty()) {
    all.push_back(checkDisk("save", folderOf(config.save), DiskKey::save));
  }
  return all;
}

}  // namespace psd

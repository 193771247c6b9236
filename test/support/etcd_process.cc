#include "test/support/etcd_process.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace psd::testing {
namespace {

/// Free ports, all different.
std::vector<uint16_t> freePorts(size_t count) {
  std::vector<int> sockets;
  std::vector<uint16_t> ports;
  for (size_t i = 0; i < count; i++) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (fd < 0 || bind(fd, any, sizeof address) != 0 || getsockname(fd, any, &bytes) != 0) {
      std::perror("a free port");
      std::abort();
    }
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) close(fd);
  return ports;
}

std::string peerUrl(uint16_t port) { return fmt::format("http://127.0.0.1:{}", port); }

}  // namespace

bool EtcdProcess::isInstalled() {
  return std::system("etcd --version 2>/dev/null | grep -Eq '^etcd Version: 3[.]([4-9]|[1-9][0-9])'") == 0;
}

EtcdProcess::EtcdProcess(size_t members, const Tls& tls)
    : tls_(tls), peerPorts_(members), processes_(members) {
  const std::vector<uint16_t> ports = freePorts(2 * members);
  std::copy_n(ports.begin() + static_cast<std::ptrdiff_t>(members), members, peerPorts_.begin());
  for (size_t i = 0; i < members; i++) members_.push_back({"127.0.0.1", ports[i], !tls.ca.empty()});
  for (size_t i = 0; i < members; i++) start(i);
}

EtcdProcess::~EtcdProcess() {
  for (size_t i = 0; i < processes_.size(); i++) kill(i);
}

bool EtcdProcess::isRunning() const {
  return std::ranges::all_of(processes_, [](pid_t process) {
    siginfo_t info{};
    const bool known = waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    return known && info.si_pid == 0;
  });
}

void EtcdProcess::signal(size_t member, int signal) const {
  if (processes_[member] > 0) ::kill(processes_[member], signal);
}

void EtcdProcess::kill(size_t member) {
  if (processes_[member] <= 0) return;
  signal(member, SIGKILL);
  waitpid(processes_[member], nullptr, 0);
  processes_[member] = 0;
}

void EtcdProcess::restart(size_t member) { start(member); }

std::string EtcdProcess::log() const {
  std::string all;
  for (size_t i = 0; i < members_.size(); i++) all += readFile(folder_.file(fmt::format("etcd{}.log", i)));
  return all;
}

void EtcdProcess::start(size_t member) {
  std::string cluster;
  for (size_t i = 0; i < members_.size(); i++)
    cluster += fmt::format("{}m{}={}", i == 0 ? "" : ",", i, peerUrl(peerPorts_[i]));
  const std::string client = members_[member].toString(), peer = peerUrl(peerPorts_[member]);
  std::vector<std::string> words = {"etcd",
                                    "--name",
                                    fmt::format("m{}", member),
                                    "--data-dir",
                                    folder_.file(fmt::format("data{}", member)),
                                    "--listen-client-urls",
                                    client,
                                    "--advertise-client-urls",
                                    client,
                                    "--listen-peer-urls",
                                    peer,
                                    "--initial-advertise-peer-urls",
                                    peer,
                                    "--initial-cluster",
                                    cluster,
                                    "--heartbeat-interval",
                                    "30",
                                    "--election-timeout",
                                    "300",
                                    "--unsafe-no-fsync"};
  if (!tls_.ca.empty()) {
    for (const auto& [flag, file] : {std::pair{"--trusted-ca-file", tls_.ca},
                                     {"--cert-file", tls_.certificate},
                                     {"--key-file", tls_.key}}) {
      words.insert(words.end(), {flag, file});
    }
    words.push_back("--client-cert-auth");
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string log = folder_.file(fmt::format("etcd{}.log", member));
  const pid_t process = fork();
  if (process < 0) {
    std::perror("fork");
    std::abort();
  }
  if (process == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  processes_[member] = process;
}

}  // namespace psd::testing

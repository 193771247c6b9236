#pragma once

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/support/catch.h"

namespace psd::testing {

inline constexpr unsigned kPatienceSeconds = 60;

// Exit statuses of a process.
inline const std::string kWell = "exit 0";
inline const std::string kKilled = "signal " + std::to_string(SIGKILL);
inline const std::string kSegmentationFault = "signal " + std::to_string(SIGSEGV);
inline const std::string kAborted = "signal " + std::to_string(SIGABRT);

/// The caller's location; std::source_location is missing in clang 14.
struct Here {
  const char* file;
  int line;
  static constexpr Here current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

/// Exits the forked process unless `holds`.
inline void must(bool holds, Here here = Here::current()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%d: does not hold\n", here.file, here.line);
  _exit(1);
}

/// One end of the link between two processes. Waits at most its patience, and not for a process that has
/// ended.
class Link {
 public:
  explicit Link(int socket) : socket_(socket) {}

  template <class T>
  void give(const T& value, Here here = Here::current()) const {
    must(send(socket_, &value, sizeof value, MSG_NOSIGNAL) == sizeof value, here);
  }

  template <class T>
  T take(Here here = Here::current()) const {
    T value;
    must(recv(socket_, &value, sizeof value, MSG_WAITALL) == sizeof value, here);
    return value;
  }

  void tell() const { give('x'); }
  void awaitTold(Here here = Here::current()) const { take<char>(here); }

  void awaitDeath(Here here = Here::current()) const {
    char byte;
    must(recv(socket_, &byte, 1, 0) <= 0, here);
  }

 private:
  int socket_;
};

using Role = std::function<void(const Link&)>;

/// A process that plays the role, with default signal handling.
inline pid_t start(const Role& role, int socket, int othersSocket) {
  const pid_t process = fork();
  if (process != 0) return process;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kPatienceSeconds);  // bounds every wait
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  for (const int signal : {SIGSEGV, SIGABRT}) std::signal(signal, SIG_DFL);
  close(othersSocket);
  role(Link(socket));
  _exit(0);
}

inline std::string endOf(pid_t process) {
  int status = 0;
  REQUIRE(waitpid(process, &status, 0) == process);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit " + std::to_string(WEXITSTATUS(status));
}

struct Ends {
  std::string exporter, importer;
};

/// Runs two linked processes until they end. Each is a process of its own, since CUDA state cannot be used
/// after a fork: the caller must not have called CUDA.
inline Ends run(const Role& exporter, const Role& importer) {
  int sockets[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  const pid_t first = start(exporter, sockets[0], sockets[1]);
  const pid_t second = start(importer, sockets[1], sockets[0]);
  for (const int socket : sockets) close(socket);
  REQUIRE(first > 0);
  REQUIRE(second > 0);
  const std::string end = endOf(first);
  return {end, endOf(second)};
}

inline std::string runAlone(const std::function<void()>& role) {
  return run([&](const Link&) { role(); }, [](const Link&) {}).exporter;
}

}  // namespace psd::testing
